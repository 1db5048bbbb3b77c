//! The quantities of world files, which are those of [`lull_units`], read by serde.

use std::fmt;

use lull_units::{bits_per_s, bytes, count, hz, share_permille, time_ns};
use serde::de::{self, Deserialize, Deserializer, Visitor};

macro_rules! quantity {
    ($($(#[$doc:meta])* $name:ident: $parse:path, $what:literal, $example:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) u64);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a ", $what, " with its unit in quotes, such as \"", $example, "\""))
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $parse(text).map($name).map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        // Only a count may be a number without a unit.
                        $parse(&number.to_string()).map($name).map_err(E::custom)
                    }

                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$name, E> {
                        $parse(&number.to_string()).map($name).map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Reader)
            }
        }
    )*};
}

quantity! {
    /// Nanoseconds.
    Time: time_ns, "time", "20us";
    /// Thousandths.
    Share: share_permille, "share", "30%";
    /// Bits per second.
    Speed: bits_per_s, "speed", "100Gbit/s";
    /// Hz.
    Frequency: hz, "frequency", "3.3GHz";
    /// Bytes.
    Size: bytes, "size", "300B";
    /// A whole number.
    Count: count, "count", "4480";
}

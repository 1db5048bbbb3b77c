//! How many there are of something, in words.

/// So many of what `one` names, whose plural ends with an "s".
pub fn counted(count: impl TryInto<u64>, one: &str) -> String {
    // Whatever does not fit is many.
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

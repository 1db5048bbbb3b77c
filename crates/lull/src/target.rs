//! The object of a command: a device of the kernel, or a process that runs lull's user plane.

use std::convert::Infallible;
use std::str::FromStr;

/// DEV or PID on the command line. A number is a process; `dev:NAME` is a device whose name is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A device of the kernel, by its name.
    Device(String),
    /// A process with a user plane of its own.
    Process(u32),
}

impl FromStr for Target {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Target, Infallible> {
        Ok(match (text.strip_prefix("dev:"), text.parse()) {
            (Some(device), _) => Target::Device(device.to_owned()),
            (None, Ok(pid)) => Target::Process(pid),
            (None, Err(_)) => Target::Device(text.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_unless_it_is_said_to_be_a_device() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        assert_eq!(target("eth0"), Target::Device("eth0".to_owned()));
        assert_eq!(target("1234"), Target::Process(1234));
        assert_eq!(target("dev:1234"), Target::Device("1234".to_owned()));
        assert_eq!(target("v0"), Target::Device("v0".to_owned()));
    }
}

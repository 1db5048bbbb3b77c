//! `--steer`: the program that chooses among listeners that share an address.

use std::path::Path;

use lull_bpf::Program;
use lull_bpf::steer::Steer;
use lull_linux::attach;

/// Reads what chooses among the listeners of a service's workers.
pub fn steer(text: &str) -> Result<Steer, String> {
    match text {
        "queue" => Ok(Steer::Queue),
        "cpu" => Ok(Steer::Cpu),
        "hash" => Ok(Steer::Hash),
        "rfs" => Err(
            "RFS is not here: it moves the delivery of a flow to the core that reads it, and here a queue's packets \
                      are delivered on the queue's CPU; cpu and queue move the reader to them instead"
                .to_owned(),
        ),
        file => {
            let read = std::fs::read_to_string(file).map_err(|error| {
                format!("cannot read the program '{file}': {error}; use queue, cpu, hash or a file")
            })?;
            let program =
                Program::parse(&read).map_err(|refused| format!("cannot use the program '{file}': {refused}"))?;
            Ok(Steer::Program(program))
        }
    }
}

/// Reads what chooses among a program's listeners in the kernel.
pub fn in_the_kernel(text: &str) -> Result<attach::Steer, String> {
    match attach::Pinned::open(Path::new(text)).map_err(|error| error.to_string())? {
        Some(pinned) => Ok(attach::Steer::Pinned(pinned)),
        None => steer(text).map(attach::Steer::Classic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gets_a_connection() {
        assert_eq!(steer("queue"), Ok(Steer::Queue));
        assert!(steer("rfs").unwrap_err().contains("RFS is not here"));
        assert!(steer("/nothing/here").unwrap_err().contains("use queue, cpu, hash or a file"));
        let file = std::env::temp_dir().join(format!("lull-steer-{}", std::process::id()));
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            steer(file.to_str().unwrap())
        };
        assert_eq!(of("2\n48 0 0 0\n22 0 0 0\n"), of("2,48 0 0 0,22 0 0 0"));
        assert!(of("1,48 0 0 0").unwrap_err().contains("no return"));
        assert!(of("2,48 0 0 0").unwrap_err().contains("says 2 instructions and has 1"));
        assert!(of("ld [0]").unwrap_err().contains("no count of instructions"));
        let _ = std::fs::remove_file(&file);
    }
}

//! Which part of a case has which core.

use crate::bench::{BenchError, check_cores};

/// The parts of a case that each want a core, with the cores that they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// A core for each part.
    pub cores: Vec<usize>,
    /// A remark for the reader if parts share a core.
    pub short: Option<String>,
}

impl Placed {
    /// Gives each of `parts` a core of its own, out of the cores that were `asked` for, or otherwise out of all that
    /// this process may use. If there are too few, the last parts share the last core, and the reader is told.
    ///
    /// # Errors
    ///
    /// This fails if this process may not use a core, or if a core is named twice.
    pub fn new(asked: &[usize], parts: &[&str]) -> Result<Placed, BenchError> {
        let cores = if asked.is_empty() { lull_host::usable_cores() } else { check_cores(asked)?.to_vec() };
        Ok(Placed::among(&cores, parts))
    }

    /// Places the parts among cores that may be used.
    fn among(cores: &[usize], parts: &[&str]) -> Placed {
        let last = cores.len().saturating_sub(1);
        let core = |part: usize| cores.get(part.min(last)).copied().unwrap_or(0);
        let short = (cores.len() < parts.len()).then(|| {
            let shared = parts[last..].join(" and ");
            format!("it takes {} cores, and there are {}: {shared} share one", parts.len(), cores.len())
        });
        Placed { cores: (0..parts.len()).map(core).collect(), short }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parts_share_the_last_core_and_it_is_said() {
        let parts = ["the service", "the second service", "the generator"];
        assert_eq!(Placed::among(&[4, 5, 6, 7], &parts), Placed { cores: vec![4, 5, 6], short: None });
        let short = Placed::among(&[0, 1], &parts);
        assert_eq!(short.cores, [0, 1, 1]);
        assert!(short.short.unwrap().ends_with("the second service and the generator share one"));
        assert!(Placed::new(&[0, 0], &parts).is_err());
    }
}

//! How busy CPUs are, from `/proc/stat`.

use crate::roots::Roots;

/// The time of CPUs, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// The time of these CPUs of the machine so far, or of all of them if none are named.
    pub fn read(roots: &Roots, cpus: &[usize]) -> Option<Ticks> {
        Ticks::parse(&std::fs::read_to_string(roots.proc("stat")).ok()?, cpus)
    }

    /// Parses the lines `cpu` of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. What guests took
    /// is in user and nice already.
    fn parse(text: &str, cpus: &[usize]) -> Option<Ticks> {
        let of = |name: String| {
            let line = text.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '))?;
            let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
            (ticks.len() >= 5).then(|| Ticks { idle: ticks[3] + ticks[4], all: ticks.iter().sum() })
        };
        if cpus.is_empty() {
            return of("cpu".to_owned());
        }
        cpus.iter().try_fold(Ticks::default(), |sum, cpu| {
            let one = of(format!("cpu{cpu}"))?;
            Some(Ticks { idle: sum.idle + one.idle, all: sum.all + one.all })
        })
    }

    /// The share of their time that they were busy since then, in percent. There is nothing if no tick has passed.
    pub fn percent_since(self, before: Ticks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(100.0 * (1.0 - self.idle.saturating_sub(before.idle) as f64 / all as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_what_was_not_idle() {
        let parse = |text: &str| Ticks::parse(text, &[]);
        let before = parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        let after = parse("cpu  150 0 75 900 75 0 0 0 0 0\n").unwrap();
        assert_eq!(after.percent_since(before), Some(37.5));
        assert_eq!(before.percent_since(before), None);
        assert_eq!(parse("intr 1 2 3\n"), None);
    }

    #[test]
    fn single_cpus_add_up() {
        let text = "cpu  9 9 9 9 9 9 9 9\ncpu1 10 0 0 30 0 0 0 0\ncpu10 5 0 0 5 0 0 0 0\ncpu2 0 0 0 10 0 0 0 0\n";
        assert_eq!(Ticks::parse(text, &[1, 2]), Some(Ticks { idle: 40, all: 50 }));
        assert_eq!(Ticks::parse(text, &[1, 3]), None, "there is no CPU 3");
    }
}

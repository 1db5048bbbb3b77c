//! Maps values to places on an axis, with round ticks.

/// An axis from `low` to `high`, drawn from `from` to `to` (in user units of the picture).
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Makes a linear axis that contains all `values`, begins at zero and ends at a round number.
    pub fn linear(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let most = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most, 5);
        Scale { low: 0.0, high: (most / step).ceil() * step, from, to, log: false }
    }

    /// Makes a linear axis around `values` that need not begin at zero or end at a round number, for values that are
    /// read along the other axis.
    pub fn close(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let (low, high) = values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        // Values that hardly differ (a single load) must not be drawn apart.
        let span = high - low;
        let room = if span < 0.3 * high { 0.3 * high } else { 0.05 * span }.max(f64::MIN_POSITIVE);
        Scale { low: (low - room).max(0.0), high: high + room, from, to, log: false }
    }

    /// Makes a linear axis between two given ends.
    pub fn between(low: f64, high: f64, from: f64, to: f64) -> Scale {
        Scale { low, high, from, to, log: false }
    }

    /// Makes a logarithmic axis that contains all positive `values`, with a little room at both ends.
    pub fn log(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let positive = |v: &f64| v.is_finite() && *v > 0.0;
        let (low, high) = values.filter(positive).fold((f64::MAX, 0.0_f64), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        // The axis spans at least a factor of two, so that noise in a flat series is not magnified.
        let (low, high) = (low / 1.15, (high * 1.15).max(low * 2.0));
        Scale { low, high, from, to, log: true }
    }

    /// Returns the place of a value. On a logarithmic axis a value that is not positive is placed at the lower end.
    pub fn place(&self, value: f64) -> f64 {
        let along = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + along * (self.to - self.from)
    }

    /// Returns round values along the axis.
    pub fn ticks(&self) -> Vec<f64> {
        if self.log { self.log_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let step = step(self.high - self.low, 5);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let inside = |mantissas: &[f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|decade| mantissas.iter().map(move |m| m * 10f64.powi(decade)))
                .filter(|v| (self.low..=self.high).contains(v))
                .collect()
        };
        // The coarsest set is taken that still has a few values on the axis.
        [&[1.0][..], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]]
            .into_iter()
            .map(inside)
            .find(|ticks| ticks.len() >= 4)
            .unwrap_or_else(|| inside(&[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]))
    }
}

/// Returns a round step (1, 2 or 5 times a power of ten) that divides `span` into about `parts`.
fn step(span: f64, parts: u32) -> f64 {
    let raw = span / f64::from(parts);
    let power = 10f64.powf(raw.log10().floor());
    match raw / power {
        m if m <= 1.0 + 1e-9 => power,
        m if m <= 2.0 + 1e-9 => 2.0 * power,
        m if m <= 5.0 + 1e-9 => 5.0 * power,
        _ => 10.0 * power,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_begin_at_zero_and_end_round() {
        let scale = Scale::linear([37.0, 93.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(scale.place(50.0), 50.0);
        assert!(Scale::linear(std::iter::empty(), 0.0, 1.0).place(0.5).is_finite());
    }

    #[test]
    fn log_axes_keep_every_value_inside() {
        for values in [[50.0, 6000.0], [100.0, 101.0], [0.5, 0.7]] {
            let scale = Scale::log(values.into_iter(), 300.0, 0.0);
            for value in values {
                assert!((0.0..=300.0).contains(&scale.place(value)), "{values:?}");
            }
            assert!((3..=12).contains(&scale.ticks().len()), "{values:?}: {:?}", scale.ticks());
        }
        assert_eq!(Scale::log(std::iter::empty(), 300.0, 0.0).place(-1.0), 300.0);
    }
}

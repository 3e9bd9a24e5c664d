//! Scales and their ticks.

/// Maps values to pixels, linearly or by their logarithm.
#[derive(Debug, Clone, Copy)]
pub(super) struct AxisScale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    logarithmic: bool,
}

impl AxisScale {
    /// Maps the values `from..=to` linearly to the pixels `start..=end`.
    pub(super) fn linear((from, to): (f64, f64), (start, end): (f64, f64)) -> Self {
        Self { from, to, start, end, logarithmic: false }
    }

    /// Maps positive values so that equal ratios have equal distances.
    pub(super) fn logarithmic((from, to): (f64, f64), (start, end): (f64, f64)) -> Self {
        Self { from, to, start, end, logarithmic: true }
    }

    /// The largest value of the range.
    pub(super) fn to(&self) -> f64 {
        self.to
    }

    /// Pixel of a value. Values outside the range are clamped.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let share = if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        px(self.start + share * (self.end - self.start))
    }

    /// Round values within the range, about `wanted` of them.
    pub(super) fn ticks(&self, wanted: f64) -> Vec<f64> {
        /// Number of decades below which 2 and 5 are ticks too.
        const FEW_DECADES: f64 = 2.0;
        if !self.logarithmic {
            let step = round_step((self.to - self.from) / wanted);
            let first = (self.from / step).ceil() as i64;
            let last = (self.to / step * (1.0 + f64::EPSILON)).floor() as i64;
            return (first..=last).map(|i| i as f64 * step).collect();
        }
        let (from, to) = (self.from.log10(), self.to.log10());
        let fine = to - from < FEW_DECADES;
        let mantissas: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = from.floor() as i32..=to.ceil() as i32;
        let all = powers.flat_map(|power| mantissas.iter().map(move |m| m * 10f64.powi(power)));
        all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `step`.
pub(super) fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let mantissa =
        [1.0, 2.0, 5.0].into_iter().find(|m| m * power >= step * (1.0 - 1e-9)).unwrap_or(10.0);
    mantissa * power
}

/// A coordinate, to a tenth of a pixel.
pub(super) fn px(coordinate: f64) -> f64 {
    (coordinate * 10.0).round() / 10.0
}

/// Label of a time on an axis, in a suitable unit.
pub(super) fn time_label(seconds: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];
    let (unit, name) = units.into_iter().find(|u| seconds >= u.0 * 0.999).unwrap_or((1e-6, "µs"));
    // Ticks have one or two digits; further ones are rounding errors.
    let amount = (seconds / unit * 1e3).round() / 1e3;
    format!("{amount} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = AxisScale::linear((0.0, 0.37), (0.0, 100.0));
        assert_eq!(linear.ticks(4.0).len(), 4);
        assert!((linear.ticks(4.0)[3] - 0.3).abs() < 1e-12);
        assert_eq!(linear.at(0.37), 100.0);
        let narrow = AxisScale::logarithmic((3e-6, 30e-6), (0.0, 100.0));
        assert_eq!(
            narrow.ticks(5.0).iter().map(|&t| time_label(t)).collect::<Vec<_>>(),
            ["5 µs", "10 µs", "20 µs"]
        );
        let wide = AxisScale::logarithmic((1e-7, 1.0), (0.0, 100.0));
        assert_eq!(wide.ticks(5.0).len(), 8);
        assert_eq!(wide.at(1e-9), 0.0, "what is outside is drawn at the end");
    }

    #[test]
    fn steps_are_1_2_or_5() {
        assert_eq!(
            [0.9, 1.0, 1.1, 4.9, 6.0, 300.0].map(round_step),
            [1.0, 1.0, 2.0, 5.0, 10.0, 500.0]
        );
    }
}

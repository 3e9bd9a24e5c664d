//! The decision in words.

use super::scale::Scale;
use super::select::{Candidate, Decision, Verdict};
use crate::analysis::RowStats;
use crate::formats::{FormatKind, Plan, csr};
use std::fmt::{self, Display};

/// How long it took to prepare an operator, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Preparation {
    /// Measuring the matrix.
    pub analyze: f64,
    /// Choosing the plan.
    pub select: f64,
    /// Packing the matrix.
    pub pack: f64,
    /// Copying it to the device.
    pub upload: f64,
}

/// Why a plan was chosen; made by [`SparseOp::explain`](crate::SparseOp::explain), read through `Display`.
#[derive(Debug, Clone, Copy)]
pub struct Explanation<'a> {
    /// Statistics of the matrix's row lengths.
    pub rows: &'a RowStats,
    /// The decision.
    pub decision: &'a Decision,
    /// What the preparation took, if it was done.
    pub preparation: Option<&'a Preparation>,
}

impl Explanation<'_> {
    /// Products after which the chosen plan has paid for its preparation, against plain CSR; none when it never does or is plain
    /// CSR itself.
    pub fn break_even(&self) -> Option<f64> {
        let plain = self.decision.candidates.iter().find(|c| c.plan == Plan::Csr(csr::Plan::Scalar))?;
        let (plain, chosen) = (plain.prediction?, self.decision.chosen()?.prediction?);
        let gain = plain.product() - chosen.product();
        (gain > 0.0).then(|| (chosen.prepare - plain.prepare).max(0.0) / gain)
    }

    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, decision) = (self.rows, self.decision);
        writeln!(
            f,
            "matrix   {} x {}, {} entries; rows of {} to {}, mean {:.1}, variation {:.2}",
            rows.nrows, rows.ncols, rows.nnz, rows.min, rows.max, rows.mean, rows.cv
        )?;
        if let Some(reason) = &decision.fallback {
            writeln!(f, "device   on the CPU: {reason}")?;
        }
        let profile = &decision.profile;
        writeln!(f, "profile  {} of {}, {}", profile.device, profile.date, decision.fit.describe())?;
        write!(f, "         {}", decision.origin)?;
        if decision.scale != Scale::NONE {
            let Scale { shared, stream, .. } = decision.scale;
            write!(f, "; times {shared:.2} where threads share, {stream:.2} for bytes from memory")?;
        }
        writeln!(f)?;
        for warning in &decision.warnings {
            writeln!(f, "         passed over: {warning}")?;
        }
        let how = if decision.fixed { "as given" } else { "chosen" };
        let calls = decision.request.expected_calls;
        writeln!(
            f,
            "plan     {}, {how} for {calls} product{}",
            decision.plan,
            if calls == 1 { "" } else { "s" }
        )?;
        if let Some(candidate) = decision.chosen() {
            write!(f, "         {}", size(candidate.traffic.matrix_bytes))?;
            write!(f, ", {:.2} slots an entry", candidate.traffic.padding_ratio(rows.nnz))?;
            if let Some(prediction) = candidate.prediction {
                write!(f, ", predicted {:.1} µs a product", prediction.product() / 1e3)?;
            }
            writeln!(f)?;
        }
        if decision.plan.format() != FormatKind::Csr
            && let Some(calls) = self.break_even()
        {
            writeln!(
                f,
                "         pays for its preparation against plain CSR after {:.0} products",
                calls.ceil()
            )?;
        }
        if let Some(p) = self.preparation {
            let ms = |seconds: f64| seconds * 1e3;
            write!(f, "took     {:.2} ms to analyse, {:.2} ms to choose", ms(p.analyze), ms(p.select))?;
            writeln!(f, ", {:.2} ms to pack", ms(p.pack))?;
        }
        Ok(())
    }
}

impl Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        let candidates = &self.decision.candidates;
        let width = candidates.iter().map(|c| c.plan.to_string().len()).max().unwrap_or(0).max(4);
        let heading = ["a product", "to prepare", "matrix", "padding"];
        let [product, prepare, matrix, padding] = heading;
        writeln!(
            f,
            "{:width$}  {product:>12}  {prepare:>12}  {matrix:>10}  {padding:>8}  verdict",
            "candidate"
        )?;
        for candidate in candidates {
            let microseconds = |ns: f64| format!("{:.1} µs", ns / 1e3);
            let (product, prepare) = match candidate.prediction {
                Some(p) => (microseconds(p.product()), microseconds(p.prepare)),
                None => ("unknown".to_owned(), "unknown".to_owned()),
            };
            let bytes = size(candidate.traffic.matrix_bytes);
            let padding = candidate.traffic.padding_ratio(self.rows.nnz);
            let plan = candidate.plan.to_string();
            let why = reason(candidate);
            writeln!(f, "{plan:width$}  {product:>12}  {prepare:>12}  {bytes:>10}  {padding:>8.2}  {why}")?;
        }
        Ok(())
    }
}

/// What became of a candidate, in words.
pub fn reason(candidate: &Candidate) -> String {
    match &candidate.verdict {
        Verdict::Chosen => "chosen".to_owned(),
        Verdict::Tied => "as fast, but larger or later in the fixed order".to_owned(),
        Verdict::Slower { ratio, because } => format!("{ratio:.2} times as long: {because}"),
        Verdict::TooLarge { limit } => format!("more than the memory limit of {}", size(*limit)),
        Verdict::OnRequest => {
            "waits for the host and cannot be part of a graph: only where it is given".to_owned()
        }
        Verdict::Unknown => "the profile has no measurements of its kernel".to_owned(),
    }
}

/// Bytes in a unit that a person reads.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut amount = bytes as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{amount:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SparseOp;
    use crate::matrix::gallery;

    #[test]
    fn it_names_the_plan_the_profile_and_every_loser() {
        let a = "femrandom,nodes=2k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
        let op = SparseOp::auto(&a).unwrap();
        let text = op.explain().to_string();
        assert!(text.contains(&format!("plan     {}, chosen for 1000 products", op.plan())), "{text}");
        assert!(text.contains("profile  ") && text.contains(" chosen\n"), "{text}");
        for candidate in &op.decision().candidates {
            assert!(text.contains(&candidate.plan.to_string()), "{text}");
        }
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!([size(0), size(1023), size(1536), size(3 << 30)], ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}

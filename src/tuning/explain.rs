//! Explanations of decisions, as text.

use super::decision::{
    Basis, Candidate, Decision, ExcludedBy, Request, TimingOutcome, TimingRun, Verdict,
};
use super::prediction::Prediction;
use super::scale::Scale;
use crate::analysis::RowStats;
use crate::device::Residency;
use crate::formats::{FormatKind, Plan, ValueEncoding};
use std::fmt::{self, Display};

/// Times of the preparation of an operator, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Preparation {
    /// Analysis of the matrix.
    pub analyze: f64,
    /// Choice of the plan, by prediction or from the store.
    pub select: f64,
    /// Check or calibration, including the packing of plans that did not win. A calibration's
    /// compilation of kernels is not counted.
    pub check: f64,
    /// Packing of the matrix.
    pub pack: f64,
    /// Copy to the device.
    pub upload: f64,
}

impl Preparation {
    /// Total time.
    #[doc(hidden)]
    pub fn total(&self) -> f64 {
        self.analyze + self.select + self.check + self.pack + self.upload
    }
}

impl Display for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("analysis", self.analyze),
            ("choice", self.select),
            ("timing runs", self.check),
            ("packing", self.pack),
            ("upload", self.upload),
        ];
        write!(f, "{}", duration(self.total()))?;
        let parts = parts.into_iter().filter(|(_, time)| *time > 0.0).enumerate();
        for (i, (name, time)) in parts {
            write!(f, "{}{name} {}", if i == 0 { ": " } else { ", " }, duration(time))?;
        }
        Ok(())
    }
}

/// Reasons for the choice of a plan. Created by [`SparseOp::explain`](crate::SparseOp::explain),
/// printed through `Display`.
#[derive(Debug, Clone, Copy)]
pub struct Explanation<'a> {
    /// Statistics of the matrix's row lengths.
    pub rows: &'a RowStats,
    /// The decision.
    pub decision: &'a Decision,
    /// Times of the preparation, if it was performed.
    pub preparation: Option<&'a Preparation>,
    /// Residency of the packed matrix in the L2 of a GPU; `None` on the CPU.
    pub residency: Option<Residency>,
    /// Auxiliary packings.
    pub auxiliary: AuxiliaryPackings<'a>,
}

/// Auxiliary packings besides the matrix; `None` for packings that were not needed so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct AuxiliaryPackings<'a> {
    /// Packing for products with the transposed matrix.
    pub transposed: Option<AuxiliaryPacking<'a>>,
    /// Packings for products with a multivector (SpMM), each with the largest numbers of vectors
    /// that it is used for, in row-major and in column-major order.
    pub spmm: [Option<([usize; 2], AuxiliaryPacking<'a>)>; 2],
}

/// An auxiliary packing.
#[derive(Debug, Clone, Copy)]
pub enum AuxiliaryPacking<'a> {
    /// The packed matrix itself.
    Shared,
    /// A separate packing.
    Own {
        /// Its plan.
        plan: &'a Plan,
        /// Its size, in bytes.
        bytes: u64,
        /// Seconds of its preparation.
        seconds: f64,
    },
}

impl Explanation<'_> {
    /// Number of products after which the chosen plan is predicted to amortise its packing,
    /// compared with the best plan of CSR. `None` if it never does or is itself a plan of CSR.
    #[doc(hidden)]
    pub fn break_even(&self) -> Option<f64> {
        let (plain, chosen) = (self.plain()?, self.decision.chosen()?);
        let prepare = |c: &Candidate| c.prediction.map(|p| p.prepare * 1e-9);
        let gain = self.predicted(plain)? - self.predicted(chosen)?;
        (gain > 0.0).then_some((prepare(chosen)? - prepare(plain)?).max(0.0) / gain)
    }

    /// As [`break_even`](Self::break_even), but with the measured time of the whole preparation,
    /// including analysis, choice and timing runs. If both plans were timed, the gain is that of
    /// their measured products.
    #[doc(hidden)]
    pub fn measured_break_even(&self) -> Option<f64> {
        let (plain, chosen) = (self.plain()?, self.decision.chosen()?);
        let measured = |c: &Candidate| self.decision.timing_run()?.timed_plan(&c.plan)?.product;
        let gain = match (measured(plain), measured(chosen)) {
            (Some(plain), Some(chosen)) => plain - chosen,
            _ => self.predicted(plain)? - self.predicted(chosen)?,
        };
        let packing = self
            .decision
            .timing_run()
            .and_then(|timing_run| timing_run.timed_plan(&plain.plan)?.prepare);
        let packing = packing.or(plain.prediction.map(|p| p.prepare * 1e-9))?;
        (gain > 0.0).then_some((self.preparation?.total() - packing).max(0.0) / gain)
    }

    /// The plan of CSR with the fastest product, unless CSR was chosen: the default without tuning.
    fn plain(&self) -> Option<&Candidate> {
        let candidates =
            self.decision.candidates.iter().filter(|c| c.plan.format() == FormatKind::Csr);
        let product = |c: &&Candidate| self.predicted(c).unwrap_or(f64::INFINITY);
        let plain = candidates.min_by(|a, b| product(a).total_cmp(&product(b)));
        plain.filter(|_| self.decision.plan.format() != FormatKind::Csr)
    }

    /// Predicted seconds of a candidate's product.
    fn predicted(&self, candidate: &Candidate) -> Option<f64> {
        candidate.prediction.map(|p| p.product() * 1e-9)
    }

    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, decision) = (self.rows, self.decision);
        writeln!(f, "matrix   {rows}")?;
        if let Some(reason) = &decision.fallback {
            writeln!(f, "device   {reason}")?;
        }
        let profile = &decision.profile;
        writeln!(
            f,
            "profile  {} of {}, {}",
            profile.device,
            profile.date,
            decision.fit.describe()
        )?;
        write!(f, "         {}", decision.origin)?;
        if decision.scale != Scale::NONE {
            let Scale { shared, stream, .. } = decision.scale;
            write!(f, "; scaled by {shared:.2} (shared work) and {stream:.2} (memory traffic)")?;
        }
        writeln!(f)?;
        for warning in &decision.warnings {
            writeln!(f, "         skipped: {warning}")?;
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
            write!(f, "         {}", size(candidate.work.matrix_bytes))?;
            write!(f, ", padding ratio {:.2}", candidate.work.padding_ratio(rows.nnz))?;
            if let Some(prediction) = candidate.prediction {
                write!(f, ", predicted {} per product", uncertain(&prediction))?;
            }
            writeln!(f)?;
            if let Some(feature) = candidate.prediction.and_then(|p| p.outside) {
                writeln!(
                    f,
                    "         less certain: the profile was measured with other values of {feature}"
                )?;
            }
        }
        if let Some(calls) = self.break_even() {
            writeln!(f, "         packing amortised after {:.0} products", calls.ceil())?;
        }
        if let Some(residency) = self.residency {
            writeln!(f, "cache    {residency}")?;
        }
        self.values(f)?;
        self.basis(f)?;
        if let Some(preparation) = self.preparation {
            self.preparation(f, preparation)?;
        }
        self.auxiliary.write(f)
    }

    /// Precisions of rounded and of stored values, if different from their own type.
    fn values(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { scalar, value_precision, .. } = self.decision.request;
        match (value_precision, self.decision.plan.properties().values) {
            (None, ValueEncoding::Narrow(precision)) => {
                writeln!(f, "values   stored exactly in {precision}, multiplied in {scalar}")
            }
            (None, _) => Ok(()),
            (Some(rounded), ValueEncoding::Narrow(precision)) => {
                writeln!(
                    f,
                    "values   rounded to {rounded}, stored in {precision}, multiplied in {scalar}"
                )
            }
            (Some(rounded), ValueEncoding::Packed) => {
                writeln!(
                    f,
                    "values   rounded to {rounded}, stored as codes if few, multiplied in {scalar}"
                )
            }
            (Some(rounded), _) => writeln!(
                f,
                "values   rounded to {rounded}, stored in {scalar}; `psell(values:{rounded})` \
                 stores {} bytes per value",
                rounded.size()
            ),
        }
    }

    /// Basis of the choice, if it is not predictions alone.
    fn basis(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.decision.basis {
            Basis::Predicted => {}
            Basis::Unpaid { gain, cost } => writeln!(
                f,
                "timing run none: it takes {} at least and is expected to save {}",
                duration(*cost),
                duration(*gain)
            )?,
            Basis::Checked { timing_run, products, limit } => {
                write_check(f, timing_run, *products, *limit)?;
            }
            Basis::Timed(timing_run) => write_timing_run(f, "", timing_run)?,
            Basis::Stored { timing_run, age } => {
                write_timing_run(f, &format!("none, stored {} ago: ", days(*age)), timing_run)?;
            }
        }
        match &self.decision.store {
            Some(said) => writeln!(f, "store    {said}"),
            None => Ok(()),
        }
    }

    fn preparation(&self, f: &mut fmt::Formatter<'_>, p: &Preparation) -> fmt::Result {
        let [analyze, select] = [p.analyze, p.select].map(duration);
        write!(f, "preparation {analyze} to analyse, {select} to choose")?;
        if p.check > 0.0 {
            write!(f, ", {} to time", duration(p.check))?;
        }
        write!(f, ", {} to pack", duration(p.pack))?;
        if self.decision.profile.device.gpu.is_some() {
            write!(f, ", {} to upload", duration(p.upload))?;
        }
        if let Some(prediction) = self.decision.chosen().and_then(|c| c.prediction) {
            write!(f, " ({} predicted)", duration(prediction.prepare * 1e-9))?;
        }
        if let Some(calls) = self.measured_break_even() {
            write!(f, ": amortised after {:.0} products", calls.ceil())?;
        }
        writeln!(f)
    }
}

impl AuxiliaryPackings<'_> {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transposed = self.transposed.map(|packed| ([usize::MAX; 2], packed));
        let [few, many] = self.spmm;
        let lines = [
            ("transposed", transposed, "shared with the symmetric matrix itself"),
            ("vectors", few, "SpMM with the same arrays"),
            ("vectors", many, "SpMM with the same arrays"),
        ];
        for (what, packed, shared) in lines {
            let Some((most, packed)) = packed else { continue };
            match packed {
                AuxiliaryPacking::Shared => write!(f, "{what:<8} {shared}")?,
                AuxiliaryPacking::Own { plan, bytes, seconds } => {
                    let (bytes, seconds) = (size(bytes), duration(seconds));
                    write!(f, "{what:<8} {plan}, {bytes}, {seconds} to prepare")?;
                }
            }
            match most {
                [usize::MAX, usize::MAX] => writeln!(f)?,
                [most, usize::MAX] => writeln!(f, ", for at most {most} in row-major order")?,
                [0, most] => writeln!(f, ", for at most {most} in column-major order")?,
                [_, most] => writeln!(f, ", for at most {most}")?,
            }
        }
        Ok(())
    }
}

/// Summary of a timing run.
fn write_timing_run(f: &mut fmt::Formatter<'_>, when: &str, timing_run: &TimingRun) -> fmt::Result {
    let timed_plans = timing_run.timed();
    write!(
        f,
        "timing run {when}{timed_plans} candidates, caches {}, {} rounds in {} (packing {}), \
         at most {} packed at once",
        if timing_run.cold { "cold" } else { "warm" },
        timing_run.rounds(),
        duration(timing_run.seconds),
        duration(timing_run.packing),
        size(timing_run.held_bytes)
    )?;
    if timing_run.groups > 1 {
        write!(f, ", {} groups", timing_run.groups)?;
    }
    writeln!(f, "; {}", timing_run.outcome())?;
    let predicted = timing_run.predicted();
    if *predicted != timing_run.winner {
        writeln!(f, "         predicted fastest was {predicted}")?;
    }
    Ok(())
}

/// Writes the extent of a check.
fn write_check(
    f: &mut fmt::Formatter<'_>,
    timing_run: &TimingRun,
    products: u64,
    limit: u64,
) -> fmt::Result {
    let timed_plans = timing_run.timed();
    writeln!(
        f,
        "check    {timed_plans} plan{} with {products} of at most {limit} products, in {} (packing \
         {})",
        if timed_plans == 1 { "" } else { "s" },
        duration(timing_run.seconds),
        duration(timing_run.packing)
    )?;
    let predicted = timing_run.predicted();
    if *predicted != timing_run.winner {
        writeln!(f, "         predicted fastest was {predicted}")?;
    }
    Ok(())
}

/// Formats a time with three digits, in nanoseconds, microseconds, milliseconds or seconds.
#[doc(hidden)]
pub fn duration(seconds: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("ns", 1e9), ("µs", 1e6), ("ms", 1e3)];
    // Below this, three digits round to less than 1000.
    const NEXT: f64 = 999.5;
    let fitting = UNITS.into_iter().find(|(_, per_second)| seconds * per_second < NEXT);
    let (unit, per_second) = fitting.unwrap_or(("s", 1.0));
    let amount = seconds * per_second;
    match amount {
        a if a == 0.0 || a >= 99.95 => format!("{a:.0} {unit}"),
        a if a >= 9.995 => format!("{a:.1} {unit}"),
        a => format!("{a:.2} {unit}"),
    }
}

/// Formats an age in words.
fn days(seconds: u64) -> String {
    match seconds / (24 * 60 * 60) {
        0 => "less than a day".to_owned(),
        1 => "a day".to_owned(),
        days => format!("{days} days"),
    }
}

impl Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        let candidates = &self.decision.candidates;
        let width = candidates.iter().map(|c| c.plan.to_string().len()).max().unwrap_or(0).max(4);
        let is_uncertain = |c: &Candidate| c.prediction.is_some_and(|p| p.spread.is_some());
        let time_width = if candidates.iter().any(is_uncertain) { 14 } else { 12 };
        let heading = ["per product", "preparation", "matrix", "padding"];
        let [product, prepare, matrix, padding] = heading;
        let timing_run = self.decision.timing_run();
        let measured =
            if timing_run.is_some() { format!("  {:>16}", "measured") } else { String::new() };
        writeln!(
            f,
            "{:width$}  {product:>time_width$}{measured}  {prepare:>12}  {matrix:>10}  \
             {padding:>8}  verdict",
            "candidate"
        )?;
        for candidate in candidates {
            let of_ns = |ns: f64| duration(ns * 1e-9);
            let (product, prepare) = match candidate.prediction {
                Some(p) => (uncertain(&p), of_ns(p.prepare)),
                None => ("unknown".to_owned(), "unknown".to_owned()),
            };
            let measured = timing_run.map_or_else(String::new, |timing_run| {
                format!("  {:>16}", timed(timing_run, candidate))
            });
            let bytes = size(candidate.work.matrix_bytes);
            let padding = candidate.work.padding_ratio(self.rows.nnz);
            let plan = candidate.plan.to_string();
            let why = reason(candidate);
            writeln!(
                f,
                "{plan:width$}  {product:>time_width$}{measured}  {prepare:>12}  {bytes:>10}  \
                 {padding:>8.2}  {why}"
            )?;
        }
        Ok(())
    }
}

/// Predicted time of a product, and its relative uncertainty if it is known.
fn uncertain(prediction: &Prediction) -> String {
    let time = duration(prediction.product() * 1e-9);
    match prediction.spread {
        Some(spread) => format!("{time} ±{:.0} %", spread.exp_m1() * 1e2),
        None => time,
    }
}

/// Measured time of a candidate, and relative deviation of the rounds.
fn timed(timing_run: &TimingRun, candidate: &Candidate) -> String {
    let timed_plan = timing_run.timed_plan(&candidate.plan);
    match timed_plan.map(|timed_plan| (timed_plan.product, timed_plan.spread)) {
        Some((Some(product), Some(spread))) => {
            format!("{} ±{:.1} %", duration(product), spread * 1e2)
        }
        Some((Some(product), None)) => duration(product),
        _ => "-".to_owned(),
    }
}

/// Verdict on a candidate, in words.
pub fn reason(candidate: &Candidate) -> String {
    match &candidate.verdict {
        Verdict::Chosen => "chosen".to_owned(),
        Verdict::Tied => "tied, but larger or later in the order of choice".to_owned(),
        Verdict::Slower { ratio, because } => format!("{ratio:.2} times as long: {because}"),
        Verdict::TooLarge { limit } => format!("exceeds the memory limit of {}", size(*limit)),
        Verdict::OnRequest => {
            "waits for the host or needs extra launches: only on request".to_owned()
        }
        Verdict::OutOfBounds { ratio, by } => {
            let by = match by {
                ExcludedBy::Estimate => "row lengths",
                ExcludedBy::Prediction => "prediction",
            };
            format!("about {ratio:.1} times the time of csr(balanced), by the {by}")
        }
        Verdict::NotDeterministic => "not bitwise reproducible".to_owned(),
        Verdict::Unknown => "no coefficients for its kernel in the profile".to_owned(),
        Verdict::Timed(TimingOutcome::Unpaid { gain, cost }) => format!(
            "not packed: expected to save {} and to cost {}",
            duration(*gain),
            duration(*cost)
        ),
        Verdict::Timed(outcome) => outcome.to_string(),
    }
}

/// Formats bytes in a readable unit.
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
mod tests;

//! The findings as text.

use super::{Findings, padding_ratio};
use crate::console::{Left, Right, count, duration, percent, table};
use sparseop::Plan;
use sparseop::analysis::{Bin, Distinct, Pattern, Structure, Symmetry, TAIL_MULTIPLES};
use sparseop::formats::FormatKind;
use sparseop::tuning::decision::{Basis, Candidate, Decision, TimingOutcome, Verdict};
use sparseop::tuning::explain::{AuxiliaryPackings, Explanation, reason, size};
use std::fmt::{self, Write};

/// Number of lines of the histogram.
const BINS: usize = 16;

/// Number of characters of its longest bar.
const BAR: usize = 40;

/// Number of candidates below the answer.
const SHOWN: usize = 5;

/// The answer, followed by the best candidates, or by everything if `verbose`.
pub(super) fn report(findings: &Findings, verbose: bool) -> Result<String, fmt::Error> {
    let mut out = answer(findings)?;
    writeln!(out)?;
    if verbose {
        details(&mut out, findings)?;
    } else {
        let candidates = &findings.decision.candidates;
        out += &best(&findings.decision);
        match candidates.len().saturating_sub(SHOWN) {
            0 => writeln!(out, "\n-v: statistics of the matrix and sizes of all formats\n")?,
            more => writeln!(
                out,
                "\n-v: {more} more plans, statistics of the matrix and sizes of all formats\n"
            )?,
        }
    }
    Ok(out)
}

/// The plan, its time, its gain and the reason.
fn answer(findings: &Findings) -> Result<String, fmt::Error> {
    let (decision, rows) = (&findings.decision, &findings.analysis.rows);
    let mut out = format!("{}: {}", findings.matrix, decision.plan);
    if let Some((seconds, how)) = time_of(decision, &decision.plan) {
        write!(out, ", {} per product {how}", duration(seconds))?;
    }
    writeln!(out, " on {}", findings.device)?;
    let reference = reference(decision);
    if let (Some(reference), Some((chosen, _))) = (reference, time_of(decision, &decision.plan))
        && chosen > 0.0
        && let Some((other, _)) = time_of(decision, &reference.plan)
    {
        let what = match decision.plan.format() {
            FormatKind::Csr => "the best plan of another format",
            _ => "the best plan of CSR",
        };
        // The ratio of a verdict is that of times of the same rounds.
        let ratio = match &reference.verdict {
            Verdict::Timed(TimingOutcome::Slower { ratio, .. } | TimingOutcome::Tied { ratio }) => {
                *ratio
            }
            _ => other / chosen,
        };
        let gain = match format!("{ratio:.2}") {
            times if times == "1.00" => format!("none: as fast as {}, {what}", reference.plan),
            _ if ratio < 1.0 => {
                format!("none: {}, {what}, takes {ratio:.2} of that time", reference.plan)
            }
            times => format!("{times} times as fast as {}, {what}", reference.plan),
        };
        write!(out, "gain     {gain}")?;
        let calls = explanation(findings).break_even().map(f64::ceil);
        match calls.filter(|calls| *calls >= 1.0) {
            Some(calls) => writeln!(out, "; {} pay for packing", count(calls as u64, "product"))?,
            None => writeln!(out)?,
        }
        let why = match &reference.verdict {
            Verdict::Slower { because, .. } => because.to_string(),
            _ => reason(reference),
        };
        writeln!(out, "why      {}: {why}", reference.plan)?;
    }
    let (nrows, ncols, scalar) = (rows.nrows, rows.ncols, findings.scalar);
    write!(out, "matrix   {nrows} x {ncols}, {} in {scalar}", count(rows.nnz, "entry"))?;
    match (rows.min, rows.max) {
        (min, max) if min == max => writeln!(out, "; rows of {}", count(max.into(), "entry"))?,
        (min, max) => writeln!(out, "; rows of {min} to {max} entries, mean {:.1}", rows.mean)?,
    }
    if let Some(reason) = &decision.fallback {
        writeln!(out, "device   {reason}")?;
    }
    match &decision.basis {
        Basis::Unpaid { gain, cost } => writeln!(
            out,
            "timing run none: it takes {} at least and is expected to save {}",
            duration(*cost),
            duration(*gain)
        )?,
        Basis::Timed(run) => writeln!(
            out,
            "timing run {} plans in {}; {}",
            run.timed(),
            duration(run.seconds),
            run.outcome()
        )?,
        Basis::Checked { timing_run, products, limit } => writeln!(
            out,
            "check    {} plans with {products} of at most {limit} products in {}",
            timing_run.timed(),
            duration(timing_run.seconds)
        )?,
        _ => {}
    }
    if let Some(said) = &decision.store {
        writeln!(out, "store    {said}")?;
    }
    let profile = &decision.profile;
    let fit = decision.fit.describe();
    writeln!(out, "profile  {}: {}, {fit}", decision.origin, profile.device)?;
    for warning in &decision.warnings {
        writeln!(out, "         skipped: {warning}")?;
    }
    Ok(out)
}

/// Seconds of a plan's product, measured if it was timed, and how they are known.
fn time_of(decision: &Decision, plan: &Plan) -> Option<(f64, &'static str)> {
    let timed = decision.timing_run().and_then(|run| run.timed_plan(plan)?.product);
    let candidate = decision.candidates.iter().find(|candidate| candidate.plan == *plan);
    let predicted = || Some(candidate?.prediction?.product() * 1e-9);
    let how = match decision.basis {
        Basis::Stored { .. } => "measured earlier",
        _ => "measured",
    };
    timed.map(|seconds| (seconds, how)).or(predicted().map(|s| (s, "predicted")))
}

/// The best plan of CSR, or of another format if CSR is chosen: the first that is neither excluded
/// nor unpredicted.
fn reference(decision: &Decision) -> Option<&Candidate> {
    let is_csr = |plan: &Plan| plan.format() == FormatKind::Csr;
    let compared = |candidate: &&Candidate| {
        matches!(candidate.verdict, Verdict::Tied | Verdict::Slower { .. } | Verdict::Timed(_))
            && is_csr(&candidate.plan) != is_csr(&decision.plan)
    };
    decision.candidates.iter().find(compared)
}

/// Table of the first candidates.
fn best(decision: &Decision) -> String {
    let columns = [
        ("plan", Left),
        ("per product", Right),
        ("preparation", Right),
        ("matrix", Right),
        ("verdict", Left),
    ];
    let row = |candidate: &Candidate| {
        let product = time_of(decision, &candidate.plan).map(|(seconds, _)| duration(seconds));
        let prepare = candidate.prediction.map(|p| duration(p.prepare * 1e-9));
        let unknown = || "unknown".to_owned();
        vec![
            candidate.plan.to_string(),
            product.unwrap_or_else(unknown),
            prepare.unwrap_or_else(unknown),
            size(candidate.work.matrix_bytes),
            reason(candidate),
        ]
    };
    table(&columns, decision.candidates.iter().take(SHOWN).map(row))
}

fn explanation(findings: &Findings) -> Explanation<'_> {
    Explanation {
        rows: &findings.analysis.rows,
        decision: &findings.decision,
        preparation: None,
        residency: None,
        auxiliary: AuxiliaryPackings::default(),
    }
}

/// Writes the statistics of the matrix, the sizes of all formats and the explanation.
fn details(out: &mut String, findings: &Findings) -> fmt::Result {
    let analysis = &findings.analysis;
    writeln!(out, "structure {}\n", findings.fingerprint)?;
    row_lengths(out, findings)?;
    structure(out, &findings.pattern, &analysis.structure)?;
    if let Some(symmetry) = &findings.symmetry {
        writeln!(out, "symmetry         {}", symmetry_in_words(symmetry))?;
    }
    writeln!(out)?;
    *out += &formats(findings);
    writeln!(out)?;
    *out += &hyb_widths(findings);
    writeln!(out)?;
    *out += &sectionings(findings);
    writeln!(out, "\n{}", explanation(findings))?;
    preparation(out, findings)
}

/// Writes the time up to the decision, in seconds and in products.
fn preparation(out: &mut String, findings: &Findings) -> fmt::Result {
    let (analyze, select) = (duration(findings.times.analyze), duration(findings.times.select));
    write!(out, "preparation {analyze} to analyse, {select} to choose")?;
    match findings.products() {
        Some(products) => writeln!(out, ": {products:.1} SpMVs of the chosen plan"),
        None => writeln!(out),
    }
}

fn row_lengths(out: &mut String, findings: &Findings) -> fmt::Result {
    let rows = &findings.analysis.rows;
    let q = &rows.quantiles;
    writeln!(
        out,
        "row length       {} to {}, mean {:.2}, variance {:.2}, standard deviation {:.2}",
        rows.min, rows.max, rows.mean, rows.variance, rows.std_dev
    )?;
    writeln!(
        out,
        "row-length CV    {:.3}, skewness {:.2}, Gini {:.3}; {} changes from row to row",
        rows.cv, rows.skewness, rows.gini, rows.changes
    )?;
    writeln!(
        out,
        "quantiles        50 %: {}, 75 %: {}, 90 %: {}, 99 %: {}, 99.9 %: {}",
        q.p50, q.p75, q.p90, q.p99, q.p999
    )?;
    writeln!(out, "empty rows       {}", rows.empty_rows)?;
    let tail = TAIL_MULTIPLES
        .iter()
        .zip(rows.tail)
        .map(|(times, share)| format!("{times}x: {}", percent(share)));
    writeln!(
        out,
        "long rows        share of entries in rows longer than the mean {}",
        tail.collect::<Vec<_>>().join(", ")
    )?;
    writeln!(out, "half of entries  in {} of {} rows\n", rows.half_rows, rows.nrows)?;
    let bins = rows.histogram.bins(BINS);
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(0);
    let line = |bin: &Bin| {
        let length = if bin.from == bin.to {
            bin.from.to_string()
        } else {
            format!("{}-{}", bin.from, bin.to)
        };
        vec![length, bin.rows.to_string(), bin.entries.to_string(), bar(bin.rows, most)]
    };
    *out += &table(
        &[("row length", Right), ("rows", Right), ("entries", Right), ("", Left)],
        bins.iter().map(line),
    );
    writeln!(out)
}

/// Draws a bar as long as `part` of `most`, in eighths of a character. At least one eighth if
/// `part` is not 0.
fn bar(part: u64, most: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part as f64 / most.max(1) as f64 * (BAR * 8) as f64).round() as usize;
    let eighths = eighths.max(usize::from(part > 0));
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

fn structure(out: &mut String, p: &Pattern, s: &Structure) -> fmt::Result {
    writeln!(
        out,
        "bandwidth        {} below the diagonal, {} above; profile {}; {} diagonals occupied",
        p.lower_bandwidth, p.upper_bandwidth, p.profile, p.diagonals
    )?;
    writeln!(
        out,
        "columns          {}, {}; slices of 32 rows within 2^8 columns {}, 2^16 {}",
        if p.sorted { "sorted" } else { "unsorted" },
        if p.duplicates { "with duplicates" } else { "no duplicates" },
        percent(p.span_below_8_bits),
        percent(p.span_below_16_bits)
    )?;
    writeln!(
        out,
        "contiguity       {} of the entries shifted by one from the row above, {} contiguous",
        percent(s.shifted),
        percent(s.contiguous)
    )?;
    writeln!(
        out,
        "dense blocks     2 x 2 filled {}, 3 x 3 {}, 4 x 4 {}{}",
        percent(p.blocks.b2),
        percent(p.blocks.b3),
        percent(p.blocks.b4),
        if p.blocks.exact { "" } else { " (sampled)" }
    )?;
    let within = |distance: f64| percent(s.reuse.share_within(distance));
    writeln!(
        out,
        "reuse of x       within 64 entries {}, 4096 {}, 131072 {}",
        within(64.0),
        within(4096.0),
        within(131_072.0)
    )?;
    match (s.distinct_values, s.exact_in.narrowest()) {
        _ if s.all_ones => writeln!(out, "values           all 1"),
        (Distinct::Exactly(n), _) => writeln!(out, "values           {n} distinct"),
        (Distinct::Many, None) => {
            writeln!(out, "values           more than {} distinct", Distinct::LIMIT)
        }
        (Distinct::Many, Some(precision)) => {
            writeln!(
                out,
                "values           more than {} distinct, all exact in {precision}",
                Distinct::LIMIT
            )
        }
    }
}

fn symmetry_in_words(symmetry: &Symmetry) -> String {
    if symmetry.symmetric() {
        "symmetric".to_owned()
    } else if symmetry.skew_symmetric() {
        "skew-symmetric".to_owned()
    } else {
        let (pattern, values) =
            (percent(symmetry.pattern_share()), percent(symmetry.numeric_share()));
        format!("{pattern} of the entries have a transposed entry, {values} an equal one")
    }
}

fn formats(findings: &Findings) -> String {
    let nnz = findings.analysis.rows.nnz;
    let columns = [("format", Left), ("matrix", Right), ("padding ratio", Right)];
    table(
        &columns,
        findings.formats().map(|(plan, work)| {
            let padding = format!("{:.2}", work.padding_ratio(nnz));
            vec![plan.to_string(), size(work.matrix_bytes), padding]
        }),
    )
}

fn hyb_widths(findings: &Findings) -> String {
    let columns = [
        ("HYB width by rule", Left),
        ("width", Right),
        ("entries in COO", Right),
        ("matrix", Right),
    ];
    table(
        &columns,
        findings.hyb_widths().map(|(rule, width, work)| {
            vec![rule, width.to_string(), work.outside.to_string(), size(work.matrix_bytes)]
        }),
    ) + "fixed                hyb(width:N), Ginkgo's column limit\n"
}

fn sectionings(findings: &Findings) -> String {
    let nnz = findings.analysis.rows.nnz;
    let columns =
        [("JDS sections", Left), ("sections", Right), ("slots", Right), ("padding ratio", Right)];
    table(
        &columns,
        findings.sectionings().map(|(sectioning, sections, slots)| {
            let padding = format!("{:.2}", padding_ratio(slots, nnz));
            vec![sectioning.to_string(), sections.to_string(), slots.to_string(), padding]
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn bars_are_to_scale_and_never_hide_a_row() {
        assert_eq!(bar(8, 8), "█".repeat(40));
        assert_eq!(bar(1, 1_000_000), "▏");
        assert_eq!(bar(0, 0), "");
    }
}

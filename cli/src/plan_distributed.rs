//! `sparseop plan-distributed`.

use super::choice::ChoiceArgs;
use super::console::{Console, Right, count, duration, percent, table};
use super::matrix_arg::{MatrixSource, parser};
use anyhow::Result;
use serde::Serialize;
use sparseop::analysis::Analysis;
use sparseop::matrix::CsrView;
use sparseop::{Device, ErrorKind, Plan, Scalar, ScalarKind, SparseOpBuilder, Tuning};
use sparseop_distributed::{Link, ScalingStep, simulate};

/// Largest number of ranks.
const MAX: usize = 1 << 20;

/// Least useful efficiency: speed-up over the ratio of the numbers of ranks.
const EFFICIENT: f64 = 0.5;

/// Predicted products on many ranks: parts, messages, and the number of ranks where scaling ends
///
/// The matrix is partitioned for every number of ranks, and messages are counted; nothing is
/// multiplied. A rank has a CPU like this one, or a GPU like that of `--device`, and a plan whose
/// products have the same bits on any number of ranks. A single operator may have a faster one,
/// which is printed as well. Compute time is that of the part with the most work. Message
/// time follows from the latency and bandwidth of the link. Messages overlap with interior rows, on
/// GPUs if these have a million entries.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop plan-distributed cant.mtx --ranks 1..4096         powers of two
  sparseop plan-distributed cant.mtx --ranks 1,4,12 --json   these numbers, as JSON
  sparseop plan-distributed gallery:poisson3d,n=100 --latency 1.5 --bandwidth 25
  sparseop plan-distributed gallery:poisson3d,n=160 --device cuda --ranks 1..8
  sparseop plan-distributed web.mtx --device cuda --link network   # a GPU on every host")]
pub(super) struct PlanDistributedArgs {
    /// A Matrix Market file or gallery:NAME[,key=value...]
    #[arg(value_parser = parser())]
    matrix: MatrixSource,
    /// Numbers of ranks: N,M,... or N..M, the powers of two from N to M and M itself
    #[arg(long, value_name = "RANKS", default_value = "1..64", value_parser = parse_ranks)]
    ranks: RankCounts,
    /// Link between the ranks: `network` (2 µs, 12.5 GB/s; default on CPUs), or `nvlink` between
    /// GPUs of one host (6.4 µs, 150 GB/s, all messages at once; default on GPUs)
    #[arg(long, value_name = "LINK")]
    link: Option<LinkKind>,
    /// Time of an empty message between two ranks, in microseconds, instead of that of the link
    #[arg(long, value_name = "US", value_parser = parse_positive)]
    latency: Option<f64>,
    /// Bandwidth of the link of a rank, in GB/s, instead of that of the link
    #[arg(long, value_name = "GBPS", value_parser = parse_positive)]
    bandwidth: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: ChoiceArgs,
}

/// Link between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LinkKind {
    Network,
    Nvlink,
}

/// Numbers of ranks, ascending.
#[derive(Debug, Clone, PartialEq)]
struct RankCounts(Vec<usize>);

/// The simulation as JSON.
#[derive(Serialize)]
struct Simulated {
    matrix: String,
    nrows: usize,
    ncols: usize,
    nnz: usize,
    dtype: ScalarKind,
    device: String,
    latency_us: f64,
    bandwidth_gbps: f64,
    single: Option<SingleOperator>,
    product: Option<ScalingEnd>,
    /// An iteration of CG: a product, two sums over all ranks, and vector operations.
    iteration: Option<ScalingEnd>,
    ranks: Vec<SimulatedStep>,
}

/// The operator of a single process, with any plan.
#[derive(Serialize)]
struct SingleOperator {
    plan: Plan,
    product_us: Option<f64>,
}

#[derive(Serialize)]
struct SimulatedStep {
    ranks: usize,
    empty: usize,
    rows: u64,
    nnz: u64,
    imbalance: f64,
    halo_bytes: u64,
    total_bytes: u64,
    neighbours: u64,
    boundary_share: f64,
    fits: bool,
    compute_us: f64,
    exchange_us: f64,
    sum_us: f64,
    vector_us: f64,
    product_us: f64,
    iteration_us: f64,
}

/// The number of ranks where scaling ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct ScalingEnd {
    /// Largest number of ranks with an efficiency of at least [`EFFICIENT`].
    efficient: usize,
    efficient_us: f64,
    /// Speed-up at `efficient` ranks over the fewest ranks.
    speedup: f64,
    /// Number of ranks with the least time.
    fastest: usize,
    fastest_us: f64,
}

impl ScalingEnd {
    /// Finds where scaling ends. `None` if no time is predicted.
    fn of(steps: &[ScalingStep], time: impl Fn(&ScalingStep) -> f64) -> Option<Self> {
        let us = |step: &ScalingStep| time(step) * 1e6;
        let known = steps.iter().copied().filter(|step| us(step).is_finite());
        let steps: Vec<ScalingStep> = known.collect();
        let first = steps.first()?;
        let speedup = |step: &ScalingStep| us(first) / us(step);
        let is_efficient = |step: &&ScalingStep| {
            speedup(step) * first.ranks as f64 >= EFFICIENT * step.ranks as f64
        };
        let efficient = steps.iter().rev().find(is_efficient)?;
        let fastest = steps.iter().min_by(|a, b| us(a).total_cmp(&us(b)))?;
        Some(Self {
            efficient: efficient.ranks,
            efficient_us: us(efficient),
            speedup: speedup(efficient),
            fastest: fastest.ranks,
            fastest_us: us(fastest),
        })
    }
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "write a number above 0, such as 2.5".to_owned())
}

fn parse_ranks(text: &str) -> Result<RankCounts, String> {
    let number = |text: &str| {
        let number = text.trim().parse::<usize>().ok();
        number.filter(|number| (1..=MAX).contains(number)).ok_or_else(|| {
            format!("write numbers from 1 to {MAX}, such as 1..64 or 1,4,12, not `{text}`")
        })
    };
    let mut ranks = match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
            if first > last {
                return Err(format!("the first number of a range is the lower one, not {first}"));
            }
            let powers = (0..usize::BITS).map(|power| 1 << power);
            let powers = powers.take_while(|power| *power < last).filter(|power| *power > first);
            powers.chain([first, last]).collect()
        }
        None => text.split(',').map(number).collect::<Result<Vec<_>, _>>()?,
    };
    ranks.sort_unstable();
    ranks.dedup();
    Ok(RankCounts(ranks))
}

pub(super) fn run(args: &PlanDistributedArgs, console: &Console) -> Result<()> {
    for option in args.choice.options_of_timing() {
        console.warn(&format!("{option} is ignored: plans are predicted, and nothing is timed"));
    }
    by_scalar!(args.choice.dtype, plan(args, console))
}

fn plan<T: Scalar>(args: &PlanDistributedArgs, console: &Console) -> Result<()> {
    let a = args.matrix.load::<T>(console)?;
    let (device, builder) = (args.choice.device()?, args.choice.builder()?);
    let usual = match args.link {
        Some(LinkKind::Network) => Link::NETWORK,
        Some(LinkKind::Nvlink) => Link::NVLINK,
        None if device == Device::Cpu => Link::NETWORK,
        None => Link::NVLINK,
    };
    let link = Link {
        latency: args.latency.map_or(usual.latency, |us| us * 1e-6),
        bandwidth: args.bandwidth.map_or(usual.bandwidth, |gbps| gbps * 1e9),
        ..usual
    };
    let (latency_us, bandwidth_gbps) = (link.latency * 1e6, link.bandwidth * 1e-9);
    let single = single(a.view(), &builder, &device)?;
    let steps = simulate(a.view(), &args.ranks.0, &builder, &device, link)?;
    let product = ScalingEnd::of(&steps, |step| step.product_seconds);
    let iteration = ScalingEnd::of(&steps, ScalingStep::iteration_seconds);
    if steps.iter().any(|step| step.fits && step.product_seconds.is_nan()) {
        console.warn("the profile does not predict this matrix; see `sparseop profile check`");
    }
    if let Some(step) = steps.iter().rev().find(|step| !step.fits) {
        let ranks = count(step.ranks as u64, "rank");
        console.warn(&format!("the largest part of {ranks} does not fit the memory of a device"));
    }
    if args.json {
        return console.print_json(&Simulated {
            matrix: args.matrix.name(),
            nrows: a.nrows(),
            ncols: a.ncols(),
            nnz: a.nnz(),
            dtype: T::KIND,
            device: device.spec().name,
            latency_us,
            bandwidth_gbps,
            single,
            product,
            iteration,
            ranks: steps.iter().map(SimulatedStep::of).collect(),
        });
    }
    let first = steps.iter().find(|step| step.product_seconds.is_finite()).unwrap_or(&steps[0]);
    let columns = [
        ("ranks", Right),
        ("rows", Right),
        ("entries", Right),
        ("imbalance", Right),
        ("halo bytes", Right),
        ("neighbours", Right),
        ("boundary", Right),
        ("rows' time", Right),
        ("messages", Right),
        ("product", Right),
        ("speedup", Right),
        ("efficiency", Right),
    ];
    let known = |number: f64, text: fn(f64) -> String| match number.is_finite() {
        true => text(number),
        false => "-".to_owned(),
    };
    let rows = steps.iter().map(|step| {
        let speedup = first.product_seconds / step.product_seconds;
        let efficiency = speedup * first.ranks as f64 / step.ranks as f64;
        vec![
            step.ranks.to_string(),
            step.rows.to_string(),
            step.nnz.to_string(),
            format!("{:.2}", step.imbalance),
            step.halo_bytes.to_string(),
            step.neighbours.to_string(),
            percent(step.boundary_share),
            known(step.compute_seconds, duration),
            duration(step.exchange_seconds),
            known(step.product_seconds, duration),
            known(speedup, |speedup| format!("{speedup:.2}")),
            known(efficiency, percent),
        ]
    });
    let mut text = table(&columns, rows);
    let ranks = |number: usize| count(number as u64, "rank");
    for (what, end) in [("products", product), ("iterations of CG", iteration)] {
        let Some(end) = end else { continue };
        text += &format!(
            "scaling of {what} ends at {}: {}, {:.2} times as fast as on {}, an efficiency of at \
             least 50 %; fastest on {}: {}\n",
            ranks(end.efficient),
            duration(end.efficient_us * 1e-6),
            end.speedup,
            first.ranks,
            ranks(end.fastest),
            duration(end.fastest_us * 1e-6),
        );
    }
    if let Some(SingleOperator { plan, product_us: Some(us) }) = &single {
        text += &format!("without ranks: {plan}, {} per product\n", duration(us * 1e-6));
    }
    let empty = steps.iter().filter(|step| step.empty > 0).min_by_key(|step| step.ranks);
    if let Some(step) = empty.filter(|step| step.ranks > 1) {
        console.note(&format!("{} of {} have no rows", step.empty, ranks(step.ranks)));
    }
    console.note(&format!(
        "ranks on {}; messages take {} µs + bytes / {} GB/s; rows, \
         entries, halo bytes and neighbours are the largest of a part",
        device.spec().name,
        shortest(latency_us),
        shortest(bandwidth_gbps),
    ));
    console.print(&text)
}

/// A number without the digits that a change of units adds.
fn shortest(number: f64) -> f32 {
    number as f32
}

/// The predicted plan of a single operator, if one fits.
fn single<T: Scalar>(
    a: CsrView<'_, T>,
    builder: &SparseOpBuilder,
    device: &Device,
) -> Result<Option<SingleOperator>> {
    let builder = builder.clone().device(device.clone()).tuning(Tuning::Predict);
    Analysis::check_memory(a)?;
    let decision = match builder.decide(&Analysis::of(a), T::KIND) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(None),
        decision => decision?,
    };
    let prediction = decision.chosen().and_then(|chosen| chosen.prediction);
    let product_us = prediction.map(|prediction| prediction.product() * 1e-3);
    Ok(Some(SingleOperator { plan: decision.plan, product_us }))
}

impl SimulatedStep {
    fn of(step: &ScalingStep) -> Self {
        Self {
            ranks: step.ranks,
            empty: step.empty,
            rows: step.rows,
            nnz: step.nnz,
            imbalance: step.imbalance,
            halo_bytes: step.halo_bytes,
            total_bytes: step.total_bytes,
            neighbours: step.neighbours,
            boundary_share: step.boundary_share,
            fits: step.fits,
            compute_us: step.compute_seconds * 1e6,
            exchange_us: step.exchange_seconds * 1e6,
            sum_us: step.sum_seconds * 1e6,
            vector_us: step.vector_seconds * 1e6,
            product_us: step.product_seconds * 1e6,
            iteration_us: step.iteration_seconds() * 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ranks_are_lists_or_powers_of_two() {
        let ranks = |text: &str| parse_ranks(text).unwrap().0;
        assert_eq!(ranks("1..8"), [1, 2, 4, 8]);
        assert_eq!(ranks("3..=12"), [3, 4, 8, 12]);
        assert_eq!(ranks("12, 1,4"), [1, 4, 12]);
        assert_eq!(ranks("5..5"), [5]);
        for bad in ["", "0", "8..1", "a", "1..", "1,,2", "2000000"] {
            assert!(parse_ranks(bad).is_err(), "{bad}");
        }
    }
}

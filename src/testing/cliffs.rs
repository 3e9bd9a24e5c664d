//! Measured times of the candidates on a GPU, on matrices with extreme rows. By hand: they take a
//! minute, and need an idle GPU.

use super::conformance::of_rows;
use super::devices::gpu;
use super::gpu::{is_left_out, least_product};
use crate::Scalar;
use crate::analysis::Analysis;
use crate::device::Device;
use crate::formats::Plan;
use crate::formats::psell::SliceProbe;
use crate::matrix::CsrMatrix;
use crate::tuning::caches::CacheState;
use crate::tuning::decision::{Request, Verdict};
use crate::tuning::plan_timer::{DevicePlanTimer, PlanTimer};
use crate::tuning::profile::Profile;
use crate::tuning::select::select;

/// A GPU for measurements.
fn idle_gpu() -> Option<&'static Device> {
    let device = gpu()?;
    if is_left_out("it takes a minute of an idle GPU") {
        return None;
    }
    Some(device)
}

/// A square matrix with rows of these lengths, whose columns are spread within `reach` of the
/// diagonal, or within all columns if that is too little.
fn banded<T: Scalar>(nrows: usize, reach: usize, len: impl Fn(usize) -> usize) -> CsrMatrix<T> {
    let row = |row: usize| {
        let own = len(row);
        let reach = if 2 * own > reach { nrows } else { reach };
        let first = row.saturating_sub(reach / 2).min(nrows - reach);
        let step = reach / own.max(1);
        let hash = move |k: usize| ((row << 20 ^ k) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..own).map(move |k| first + k * step + (hash(k) >> 33) as usize % step)
    };
    of_rows(nrows, (0..nrows).map(row))
}

/// Seconds of a product with each plan, with other data in the L2, and its bytes.
fn times<T: Scalar>(device: &Device, a: &CsrMatrix<T>, plans: &[Plan]) -> Vec<(f64, u64)> {
    let timer = DevicePlanTimer::new(a.view(), device, CacheState::Company).unwrap();
    let time = |plan: &Plan| {
        let ready = timer.pack(plan).unwrap();
        (least_product(&timer, &ready.matrix, (1, 10)), ready.matrix.bytes())
    };
    plans.iter().map(time).collect()
}

/// Plans that may be chosen without a timing run.
fn candidates<T: Scalar>(device: &Device, a: &CsrMatrix<T>) -> Vec<Plan> {
    let analysis = Analysis::of(a.view());
    let request = Request::new(&analysis, T::KIND, u64::MAX);
    let decision = select(&analysis, &device.spec(), Profile::builtin(device), request).unwrap();
    let chosen = |verdict: &Verdict| matches!(verdict, Verdict::Tied | Verdict::Slower { .. });
    let left = decision.candidates.into_iter().filter(|c| chosen(&c.verdict));
    left.map(|c| c.plan).collect()
}

/// Prints the time of each candidate over that of `csr(balanced)`; none takes twice as long.
#[test]
fn no_candidate_takes_twice_as_long_as_csr_balanced() {
    no_candidate_is_slow::<f32>();
    no_candidate_is_slow::<f64>();
}

fn no_candidate_is_slow<T: Scalar>() {
    let Some(device) = idle_gpu() else { return };
    let rows = 214_000;
    let matrices: [(&str, CsrMatrix<T>); 7] = [
        ("rows of 100,000", banded(rows, 4000, |r| if r % 40_000 == 7 { 100_000 } else { 6 })),
        ("40 full rows", banded(rows, 4000, |r| if r % 5350 == 7 { 214_000 } else { 6 })),
        ("90 % empty", banded(2_000_000, 4000, |r| if r % 10 == 3 { 20 } else { 0 })),
        ("90 % empty, scattered", banded(2_000_000, 2_000_000, |r| 20 * usize::from(r % 10 == 3))),
        ("0.1 % of 2000", banded(500_000, 8000, |r| if r % 1000 == 3 { 2000 } else { 8 })),
        ("3 % of 65", banded(500_000, 8000, |r| if r % 33 == 3 { 65 } else { 8 })),
        ("1 % of 500, scattered", banded(500_000, 500_000, |r| if r % 100 == 3 { 500 } else { 8 })),
    ];
    let mut slow = Vec::new();
    for (name, a) in matrices {
        let mut plans = vec!["csr(balanced)".parse().unwrap()];
        plans.extend(candidates(device, &a));
        let found = times(device, &a, &plans);
        let balanced = found[0].0;
        eprintln!("{name}, {} entries in {}: {:.1} us", a.nnz(), T::KIND, balanced * 1e6);
        for (plan, (seconds, _)) in plans.iter().zip(&found).skip(1) {
            eprintln!("  {:.2} {plan}", seconds / balanced);
            if *seconds > 2.0 * balanced {
                slow.push(format!("{plan} on {name} in {}", T::KIND));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}

/// Prints what long rows cost in packed SELL: the time of the fastest of some packings over that
/// without long rows, and the same ratio of the bytes. The time grows at most half as much again.
#[test]
fn the_time_of_long_rows_in_packed_sell_follows_their_bytes() {
    time_of_long_rows::<f32>();
    time_of_long_rows::<f64>();
}

fn time_of_long_rows<T: Scalar>() {
    let Some(device) = idle_gpu() else { return };
    // As candidates: with the length of long rows that the analysis finds.
    let packings = |a: &CsrMatrix<T>| {
        let split = SliceProbe::of(&Analysis::of(a.view())).split;
        let plan = |start: &str| format!("psell({start},split:{split})").parse::<Plan>().unwrap();
        ["sigma:1,group:4", "sigma:512,group:4", "sigma:1"].map(plan)
    };
    let rows = 500_000;
    for short in [8, 20] {
        let base = banded::<T>(rows, 8000, |_| short);
        let fastest = |a: &CsrMatrix<T>| {
            let found = times(device, a, &packings(a));
            found.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
        };
        let (seconds, bytes) = fastest(&base);
        eprintln!("rows of {short} in {}: {:.1} us", T::KIND, seconds * 1e6);
        for (every, long) in
            [(1000, 65), (1000, 500), (1000, 2000), (100, 65), (100, 500), (33, 65), (33, 200)]
        {
            let a = banded::<T>(rows, 8000, |row| if row % every == 3 { long } else { short });
            let (own, own_bytes) = fastest(&a);
            let (time, bytes) = (own / seconds, own_bytes as f64 / bytes as f64);
            eprintln!(
                "  one in {every} of {long}: {:.1} us, {time:.2} times as long, {bytes:.2} of the \
                 bytes",
                own * 1e6
            );
            assert!(time < 1.5 * bytes, "one in {every} of {long} in {}", T::KIND);
        }
    }
}

//! Signs that other work disturbs the measurements.

use super::report::{BenchRun, MeasuredRun};
use sparseop::tuning::decision::Decision;
use sparseop::tuning::profile::Fit;
use std::fs;
use std::time::Duration;

/// Ratio of the median to the least time of a run above which its rounds disagree.
const DISAGREE: f64 = 1.3;

/// Share of the runs that may disagree: rounds of single plans do so on idle machines.
const TOLERATED: f64 = 0.25;

/// Ratio of the bandwidth of a copy to that of the profile below which the copy is slow.
const SLOW_COPY: f64 = 0.5;

/// Describes the disagreement of the rounds, if many runs have it.
pub(super) fn spread(runs: &[BenchRun]) -> Option<String> {
    let measured: Vec<&MeasuredRun> = runs.iter().filter_map(BenchRun::measured).collect();
    let ratio = |run: &MeasuredRun| run.median_us / run.min_us;
    let wide = measured.iter().filter(|run| ratio(run) > DISAGREE).count();
    if wide == 0 || wide as f64 <= TOLERATED * measured.len() as f64 {
        return None;
    }
    let worst = measured.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    Some(format!(
        "this machine is busy: the median of {wide} of {} runs is more than {DISAGREE} times their \
         least time, that of {} {:.1} times; repeat on an idle machine, or with more --seconds",
        measured.len(),
        worst.plan,
        ratio(worst)
    ))
}

/// Number of tasks of other programs that run at this moment, and of the processors that all
/// programs share. `None` if the system does not report it.
pub(super) fn others() -> Option<(usize, usize)> {
    // The threads of this process go on running for a moment after their last task.
    std::thread::sleep(Duration::from_millis(5));
    counts(&fs::read_to_string("/proc/loadavg").ok()?, &fs::read_to_string("/proc/stat").ok()?)
}

/// The numbers of [`others`], from the texts of Linux.
fn counts(load: &str, processors: &str) -> Option<(usize, usize)> {
    let (running, _) = load.split_whitespace().nth(3)?.split_once('/')?;
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // One of the running tasks is this one.
    let others = running.parse::<usize>().ok()?.saturating_sub(1);
    Some((others, processors.lines().filter(is_processor).count()))
}

/// Describes other tasks that ran before and after the measurement of products on `threads`
/// threads, if there are not enough processors for all.
pub(super) fn contention(samples: [Option<(usize, usize)>; 2], threads: usize) -> Option<String> {
    let [(before, processors), (after, _)] = samples.map(|sample| sample.unwrap_or_default());
    let others = before.min(after);
    (others > 0 && others + threads > processors).then(|| {
        let are =
            if others == 1 { "1 task runs".to_owned() } else { format!("{others} tasks run") };
        format!(
            "this machine is busy: {are} beside {threads} threads of products, on {processors} \
             processors"
        )
    })
}

/// Describes a copy that is much slower than when the profile was measured on this device.
pub(super) fn slow_copy(decision: &Decision, bandwidth: Option<f64>) -> Option<String> {
    let (found, known) = (bandwidth?, decision.profile.ceilings.copy_bandwidth?);
    (decision.fit == Fit::Exact && found < SLOW_COPY * known).then(|| {
        format!(
            "this machine is busy: a copy moves {:.1} GB/s, and {:.1} GB/s when the profile was \
             measured",
            found / 1e9,
            known / 1e9
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::analysis::Analysis;
    use sparseop::matrix::gallery::Spec;
    use sparseop::{Device, ScalarKind, SparseOpBuilder};
    use std::sync::Arc;

    fn run(plan: &str, median_us: f64) -> BenchRun {
        BenchRun::Measured(MeasuredRun {
            engine: "sparseop",
            version: None,
            plan: plan.to_owned(),
            completed: true,
            median_us,
            min_us: 1.0,
            rel_error: 0.0,
            vectors: 1,
            details: None,
            spmm_plan: None,
        })
    }

    #[test]
    fn a_copy_is_compared_with_the_profile_of_this_device() {
        let a = "small,n=5".parse::<Spec>().unwrap().generate::<f64>().unwrap();
        let builder = SparseOpBuilder::new().device(Device::Cpu);
        let mut decision = builder.decide(&Analysis::of(a.view()), ScalarKind::F64).unwrap();
        Arc::make_mut(&mut decision.profile).ceilings.copy_bandwidth = Some(40e9);
        decision.fit = Fit::Exact;
        let said = slow_copy(&decision, Some(4e9)).unwrap();
        assert!(said.contains("a copy moves 4.0 GB/s, and 40.0 GB/s when"), "{said}");
        assert_eq!((slow_copy(&decision, Some(39e9)), slow_copy(&decision, None)), (None, None));
        decision.fit = Fit::SameKind;
        assert_eq!(slow_copy(&decision, Some(4e9)), None, "another device");
    }

    #[test]
    fn tasks_beside_the_products_need_processors_of_their_own() {
        let stat = "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 3\n";
        assert_eq!(counts("0.5 0.4 0.3 3/120 999\n", stat), Some((2, 2)));
        assert_eq!(counts("nonsense", stat), None);
        let said = contention([Some((2, 2)), Some((1, 2))], 2).unwrap();
        assert_eq!(
            said,
            "this machine is busy: 1 task runs beside 2 threads of products, on 2 processors"
        );
        assert_eq!(contention([Some((2, 8)), Some((2, 8))], 2), None, "room for all");
        assert_eq!(contention([Some((2, 2)), Some((0, 2))], 2), None, "not all the time");
        assert_eq!(contention([None, None], 2), None);
    }

    #[test]
    fn rounds_that_disagree_are_noticed_if_they_are_many() {
        let runs = [run("csr", 1.05), run("ell", 1.1), run("coo", 1.2), run("tiles", 2.5)];
        assert_eq!(spread(&runs), None, "one of four");
        assert_eq!(spread(&[]), None);
        let said = spread(&[run("csr", 1.5), run("ell", 2.5), run("coo", 1.0)]).unwrap();
        assert!(said.starts_with("this machine is busy: the median of 2 of 3 runs"), "{said}");
        assert!(said.contains("that of ell 2.5 times"), "{said}");
    }
}

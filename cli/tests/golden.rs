//! Golden tests of the output, with times, devices and the like masked.

mod common;

use common::stdout;
use sparseop::Plan;

/// A profile with invented coefficients, which do not change with new measurements.
const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/profile.ron");

/// Compares the output with the stored text, after `filters` have masked what differs from run to
/// run.
macro_rules! golden {
    ($name:literal, $args:expr, $filters:expr) => {
        insta::with_settings!({ filters => $filters, omit_expression => true }, {
            insta::assert_snapshot!($name, of_known_formats(&stdout($args)));
        })
    };
}

/// Formats in the stored texts, which stay the same with more formats.
const FORMATS: [&str; 9] = ["csr", "ell", "sell", "psell", "jds", "hyb", "coo", "tiles", "blocked"];

/// Output without the lines of plans of other formats.
fn of_known_formats(text: &str) -> String {
    let is_known = |line: &&str| {
        let plan = line.split_whitespace().next().and_then(|word| word.parse::<Plan>().ok());
        plan.is_none_or(|plan| FORMATS.contains(&plan.format().name()))
    };
    text.split_inclusive('\n').filter(is_known).collect()
}

/// Masks of the profile's fit and path, of the time of the choice and of the number of plans.
const FIT: [(&str, &str); 6] = [
    (r"(?m)per product predicted on .*$", "per product predicted on [device]"),
    (r"(?m)measured on (this|another) .*$", "[fit]"),
    (r"(?m)read from .*$", "read from [file]"),
    (
        r"(?m)^preparation .+ to analyse, .+ to choose",
        "preparation [time] to analyse, [time] to choose",
    ),
    (r"[0-9.]+ SpMVs", "[number] SpMVs"),
    (r"-v: [0-9]+ more plans", "-v: [number] more plans"),
];

#[test]
fn help() {
    golden!("help", &["--help"], Vec::<(&str, &str)>::new());
    let plans = (r"(?s)name\(key:value,\.\.\.\): .*?\.\n", "name(key:value,...): [plans].\n");
    golden!("help_bench", &["bench", "--help"], [plans]);
    golden!("help_profile", &["profile", "--help"], Vec::<(&str, &str)>::new());
    golden!("help_profile_check", &["profile", "check", "--help"], Vec::<(&str, &str)>::new());
}

#[test]
fn analyze_a_stencil() {
    golden!(
        "analyze_small",
        &["analyze", "gallery:small", "--symmetry", "--profile", PROFILE, "-v"],
        FIT
    );
    golden!("analyze_answer", &["analyze", "gallery:small", "--profile", PROFILE], FIT);
}

#[test]
fn analyze_a_skewed_matrix() {
    let args =
        ["analyze", "gallery:circuit,rows=30k", "--dtype", "f32", "--profile", PROFILE, "-v"];
    golden!("analyze_circuit", &args, FIT);
}

#[test]
fn analyze_nothing() {
    golden!(
        "analyze_empty",
        &["analyze", "gallery:dense,n=0", "--symmetry", "--profile", PROFILE, "-v"],
        FIT
    );
}

#[test]
fn bench() {
    let args = [
        "bench",
        "gallery:small",
        "gallery:banded,rows=2k",
        "--plans",
        "sell(c:16,sigma:128)",
        "--baselines",
        "none",
        "--seconds",
        "0.01",
        "--profile",
        PROFILE,
    ];
    let filters = [
        (r"(?m) on [^:\n]*$", " on [device]"),
        (r"(?m)auto takes .*$", "auto takes [plan]"),
        (r"(?m)^prepared in .*$", "prepared in [times]"),
        // The widths of the columns depend on the numbers in them.
        (r" {2,}", "  "),
        (r"[0-9.]+ (ns|µs|ms|s)  [0-9.]+  ", "[median]  [rate]  "),
        (r"  <- auto", ""),
    ];
    golden!("bench", &args, filters);
}

#[test]
fn gallery_list() {
    golden!("gallery_list", &["gallery", "list"], Vec::<(&str, &str)>::new());
}

#[test]
fn devices() {
    let filters = [
        (r"(?m)^(cpu +).*$", "$1[processor]"),
        (r"(?m)^(cuda\S* +).*$", "$1[GPU, or why there is none]"),
        (r"(?m)^(driver|NVRTC|cache|profile)( +).*(\n .*)*$", "$1$2[state]"),
    ];
    golden!("devices", &["devices"], filters);
}

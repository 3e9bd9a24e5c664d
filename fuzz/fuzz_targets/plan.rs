//! Any text parses to a plan or to an error, and never panics. The spelling of a plan parses to the
//! same plan.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::Plan;

fuzz_target!(|text: &str| {
    if let Ok(plan) = text.parse::<Plan>() {
        assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
    }
});

//! Any text is a plan or an error, never a panic, and a plan's spelling reads back as the same plan.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::Plan;

fuzz_target!(|text: &str| {
    if let Ok(plan) = text.parse::<Plan>() {
        assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
    }
});

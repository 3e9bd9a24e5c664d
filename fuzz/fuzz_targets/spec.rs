//! Any text parses to a specification of the gallery or to an error. Its spelling parses to the
//! same specification.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::matrix::gallery::Spec;

fuzz_target!(|text: &str| {
    if let Ok(spec) = text.parse::<Spec>() {
        assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
    }
});

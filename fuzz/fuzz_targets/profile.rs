//! Any text parses to a profile or to an error. A profile is written as a text that parses to the
//! same profile, and fits a device or not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::Device;
use sparseop::tuning::profile::Profile;

fuzz_target!(|text: &str| {
    if let Ok(profile) = Profile::parse("fuzz", text) {
        profile.fit(&Device::Cpu.spec());
        let path = std::env::temp_dir().join(format!("sparseop-fuzz-{}.ron", std::process::id()));
        profile.write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), profile);
    }
});

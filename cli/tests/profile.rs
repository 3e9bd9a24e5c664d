//! `sparseop profile`, and the effect of profiles on the commands that choose plans.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use sparseop::{Device, Profile};
use std::fs;

const A: &str = "tests/data/tuned-a.ron";
const B: &str = "tests/data/tuned-b.ron";

/// Masks of the differences between machines and between versions.
const FILTERS: [(&str, &str); 4] = [
    (r"(?m)^(fit +)measured .*$", "$1[fit]"),
    (r"(this program has|and cpu is) .*", "$1 [it]"),
    (r"(no coefficients in f\d\d for) .*: never", "$1 [kernels]: never"),
    (r"(?m)^kernels ( +)\S+, .*$", "kernels $1[kernels]"),
];

macro_rules! golden {
    ($name:literal, $text:expr) => {
        insta::with_settings!({ filters => FILTERS, omit_expression => true }, {
            insta::assert_snapshot!($name, $text)
        })
    };
}

/// Output of the program, which must exit with 1.
fn failing(args: &[&str]) -> String {
    let assert = sparseop(args).assert().code(1);
    let output = assert.get_output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn show() {
    golden!("profile_show", stdout(&["profile", "show", A]));
    let json: Value = serde_json::from_str(&stdout(&["profile", "show", "--json", A])).unwrap();
    assert_eq!(json["file"], A);
    assert_eq!(json["profile"]["records"][0]["runs"][1]["product_us"], 980.0);
    assert_eq!(json["profile"]["coefficients"]["f32"]["ell"]["slot"], 0.44);
}

#[test]
fn show_prints_the_profile_in_use() {
    let json: Value = serde_json::from_str(&stdout(&["profile", "show", "--json"])).unwrap();
    let here = sparseop::Device::Cpu.spec();
    let name = match here.instructions.as_str() {
        "avx512" if here.name.starts_with("Intel") => "cpu-intel",
        "avx512" => "cpu",
        _ => "cpu-avx2",
    };
    assert_eq!(json["origin"]["built-in"], name);
    let text = stdout(&["profile", "show"]);
    assert!(text.starts_with(&format!("used on cpu in f32: built in as {name}\n")), "{text}");
}

#[test]
fn check() {
    golden!("profile_check", failing(&["profile", "check", A, "nowhere.ron"]));
    let json: Value = serde_json::from_str(&failing(&["profile", "check", A, "--json"])).unwrap();
    assert_eq!((&json["ok"], &json["problems"][0]["what"]), (&false.into(), &"kernels".into()));
}

#[test]
fn check_passes_valid_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.ron").display().to_string();
    // The built-in one, whatever kernels it was measured with.
    let text = fs::read_to_string("../models/cpu.ron").unwrap();
    fs::write(&path, &text).unwrap();
    let bars = ["profile", "check", &path, "--any-device", "--bars", "9,9,9"];
    let shown: Value =
        serde_json::from_str(&stdout(&["profile", "show", "--json", &path])).unwrap();
    if shown["current_kernels"] == true {
        assert_eq!(stdout(&bars), format!("{path}: ok\n"));
    }
    if shown["current_kernels"] == true {
        let said = stdout(&["profile", "check", &path, "--any-device"]);
        assert!(said.starts_with(&format!("{path}: ok\n")), "{said}");
    }
    assert!(
        failing(&["profile", "check", &path, "--any-device", "--bars", "1,1,1"])
            .contains("exceeds 1")
    );
}

#[test]
fn diff() {
    golden!("profile_diff", stdout(&["profile", "diff", A, B]));
    let same = stdout(&["profile", "diff", A, A]);
    assert!(same.contains("are equal") && same.contains("0 coefficients changed"), "{same}");
    let json: Value = serde_json::from_str(&stdout(&["profile", "diff", A, B, "--json"])).unwrap();
    assert_eq!(json["choices"]["common"], 3);
    assert_eq!(json["choices"]["different"][0]["ratio"], 1.5);
}

#[test]
fn generic_is_for_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("generic.ron").display().to_string();
    stdout(&["profile", "generic", "../models/nvidia-h200.ron", "--out", &out]);
    let made: Value = serde_json::from_str(&stdout(&["profile", "show", "--json", &out])).unwrap();
    assert_eq!((&made["profile"]["device"]["threads"], &made["fit"]), (&1.into(), &Value::Null));
    let assert = sparseop(&["profile", "generic", A, "--out", &out]).assert().code(1);
    assert!(String::from_utf8_lossy(&assert.get_output().stderr).contains("measured on a CPU"));
}

#[test]
fn a_damaged_user_profile_is_reported_and_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged.ron");
    fs::write(&damaged, "(schema: 2,").unwrap();
    let run = |args: &[&str], variable: &str, config: &str| {
        let mut command = sparseop(args);
        command.env_remove("SPARSEOP_PROFILE").env(variable, config);
        let output = command.assert().success().get_output().clone();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let file = damaged.to_str().unwrap();
    let args = ["analyze", "gallery:small"];
    let (out, _) = run(&args, "SPARSEOP_PROFILE", file);
    assert!(out.contains("built in as cpu") && out.contains("skipped: profile"), "{out}");
    let (out, _) = run(&["analyze", "gallery:small", "--json"], "SPARSEOP_PROFILE", file);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert!(json["profile"]["warnings"][0].as_str().unwrap().contains("damaged.ron"));
    let (_, err) = run(&["apply", "gallery:small", "-v"], "SPARSEOP_PROFILE", file);
    assert!(err.contains("skipped: "), "{err}");
    // The same in the user's folder, on platforms that take it from XDG_CONFIG_HOME.
    if cfg!(unix) {
        let profiles = folder.path().join("sparseop/profiles");
        fs::create_dir_all(&profiles).unwrap();
        fs::rename(&damaged, profiles.join("damaged.ron")).unwrap();
        fs::copy("../tests/data/profile.ron", profiles.join("good.ron")).unwrap();
        let (out, _) =
            run(&["profile", "show"], "XDG_CONFIG_HOME", folder.path().to_str().unwrap());
        assert!(out.contains("skipped: ") && out.contains("damaged.ron"), "{out}");
    }
}

#[test]
fn coefficients_of_zero_give_no_gain() {
    let mut profile = (*Profile::builtin(&Device::Cpu)).clone();
    profile.correction = None;
    let kernels = profile.coefficients.values_mut().flat_map(|kernels| kernels.values_mut());
    kernels.for_each(|coefficients| *coefficients = Default::default());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zero.ron");
    profile.write(&path).unwrap();
    let matrix = ["analyze", "gallery:uniform,rows=500"];
    let text = stdout(&[&matrix[..], &["--profile", path.to_str().unwrap()]].concat());
    assert!(!text.contains("NaN") && !text.contains("gain"), "{text}");
}

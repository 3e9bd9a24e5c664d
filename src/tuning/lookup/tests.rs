use super::*;
use crate::analysis::Analysis;
use crate::matrix::gallery;
use crate::tuning::decision::Request;
use crate::tuning::select;
use proptest::prelude::*;
use std::fs;
use tempfile::TempDir;

const SCALAR: ScalarKind = ScalarKind::F64;

/// A device that does not exist.
fn here() -> DeviceSpec {
    DeviceSpec { name: "here".to_owned(), instructions: "neon".to_owned(), threads: 8, gpu: None }
}

/// A profile that was measured on `device` with the present kernels.
fn measured(device: DeviceSpec) -> Profile {
    let kernels = device.kernels().to_owned();
    Profile { device, kernels, ..(*Profile::builtin_for(&here()).1).clone() }
}

fn keep(folder: &TempDir, name: &str, profile: &Profile) -> PathBuf {
    let path = folder.path().join(name);
    profile.write(&path).unwrap();
    path
}

/// Best profile of a folder alone: file name, fit and warnings.
fn best(folder: &TempDir) -> (String, Fit, Vec<String>) {
    named(UserProfiles::read(None, Some(folder.path())).best(&here(), SCALAR))
}

fn named(found: ResolvedProfile) -> (String, Fit, Vec<String>) {
    let name = match &found.origin {
        Origin::Folder(path) | Origin::Variable(path) => {
            path.file_name().unwrap().to_str().unwrap()
        }
        origin => &origin.to_string(),
    };
    (name.to_owned(), found.profile.fit(&here()), found.warnings)
}

#[test]
fn the_best_fit_wins() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(best(&folder), ("built in as cpu-avx2".to_owned(), Fit::SameKind, vec![]));
    keep(&folder, "d.ron", &measured(DeviceSpec { instructions: "sse".to_owned(), ..here() }));
    assert_eq!(best(&folder).0, "d.ron", "of equal fits the user's comes first");
    keep(&folder, "c.ron", &measured(DeviceSpec { threads: 4, ..here() }));
    assert_eq!((best(&folder).0, best(&folder).1), ("c.ron".to_owned(), Fit::SameArchitecture));
    keep(&folder, "b.ron", &measured(here()));
    let latest = Profile { date: "2999-01-01".to_owned(), ..measured(here()) };
    keep(&folder, "e.ron", &latest);
    assert_eq!(best(&folder), ("e.ron".to_owned(), Fit::Exact, vec![]));
    // Files with another extension are ignored.
    fs::write(folder.path().join("a.txt"), "nonsense").unwrap();
    assert_eq!(best(&folder).2, Vec::<String>::new());
}

#[test]
fn profiles_of_old_kernels_rank_last_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let old = Profile { kernels: "old".to_owned(), ..measured(here()) };
    let path = keep(&folder, "old.ron", &old);
    let (name, _, warnings) = best(&folder);
    assert_eq!(name, "built in as cpu-avx2");
    assert!(
        warnings.len() == 1
            && warnings[0].contains("old.ron")
            && warnings[0].contains("another version")
    );
    // A named profile is used, and its fit is stated.
    let profiles = UserProfiles::read(Some(path.as_os_str()), None);
    assert_eq!(
        named(profiles.best(&here(), SCALAR)),
        ("old.ron".to_owned(), Fit::OldKernels, vec![])
    );
}

#[test]
fn named_profiles_precede_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    keep(&folder, "exact.ron", &measured(here()));
    let other = keep(&elsewhere, "other.ron", &measured(DeviceSpec { threads: 4, ..here() }));
    let gpu = Profile::parse("h200", include_str!("../../../models/nvidia-h200.ron")).unwrap();
    let gpu = keep(&elsewhere, "gpu.ron", &gpu);
    let variable = std::env::join_paths([&gpu, &other]).unwrap();
    let find = |variable: &OsStr| {
        named(UserProfiles::read(Some(variable), Some(folder.path())).best(&here(), SCALAR)).0
    };
    assert_eq!(find(&variable), "other.ron");
    assert_eq!(find(gpu.as_os_str()), "exact.ron", "a GPU's is no use to a CPU");
    assert_eq!(find(OsStr::new("")), "exact.ron");
    assert_eq!(find(OsStr::new("off")), "built in as cpu-avx2");
    let missing = UserProfiles::read(Some(OsStr::new("/nowhere.ron")), Some(folder.path()))
        .best(&here(), SCALAR);
    assert!(matches!(&missing.warnings[..], [one] if one.contains("cannot read /nowhere.ron")));
}

#[test]
fn one_that_does_not_know_the_scalar_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = measured(here());
    profile.coefficients.remove(&SCALAR);
    keep(&folder, "f32.ron", &profile);
    let (name, _, warnings) = best(&folder);
    assert_eq!(name, "built in as cpu-avx2");
    assert!(warnings.len() == 1 && warnings[0].contains("plain CSR in f64"), "{warnings:?}");
    let profiles = UserProfiles::read(None, Some(folder.path()));
    assert_eq!(named(profiles.best(&here(), ScalarKind::F32)).0, "f32.ron");
}

#[cfg(unix)]
#[test]
fn every_invalid_profile_is_a_warning() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let good = include_str!("../../../models/cpu.ron");
    for (name, text) in [
        ("empty.ron", String::new()),
        ("nested.ron", "(".repeat(1 << 20)),
        (
            "nested-in.ron",
            good.replacen(
                "kernels:",
                &format!("x: {}1{}, kernels:", "[".repeat(9999), "]".repeat(9999)),
                1,
            ),
        ),
        ("nan.ron", good.replacen("slot: ", "slot: NaN, x: ", 1)),
        ("negative.ron", good.replacen("row: ", "row: -", 1)),
        ("infinite.ron", good.replacen("cache_bytes: ", "cache_bytes: inf, x: ", 1)),
        ("schema.ron", good.replacen("schema: 5", "schema: 4", 1)),
        (
            "records.ron",
            good.replacen(
                "coefficients",
                &format!("records: [{}], coefficients", "(),".repeat(1 << 20)),
                1,
            ),
        ),
        ("name.ron", good.replacen("name: \"", &format!("name: \"{}", "x".repeat(1 << 20)), 1)),
        ("cut.ron", good[..good.len() / 2].to_owned()),
    ] {
        fs::write(at(name), text).unwrap();
    }
    fs::write(at("latin1.ron"), b"(schema: 2, kernels: \"\xe9\")").unwrap();
    fs::File::create(at("huge.ron")).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir(at("folder.ron")).unwrap();
    symlink(at("loop.ron"), at("loop.ron")).unwrap();
    symlink(at("nowhere"), at("dangling.ron")).unwrap();
    symlink("/dev/zero", at("endless.ron")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("pipe.ron")).status().unwrap().success());
    let files = fs::read_dir(folder.path()).unwrap().count();
    let (name, _, warnings) = best(&folder);
    assert_eq!(name, "built in as cpu-avx2");
    assert_eq!(warnings.len(), files, "{warnings:#?}");
    for entry in fs::read_dir(folder.path()).unwrap() {
        let file = entry.unwrap().path().display().to_string();
        assert!(warnings.iter().any(|w| w.contains(&file)), "{file} is not in {warnings:#?}");
    }
    // A valid profile among them is found; a loop of links is not a folder.
    keep(&folder, "good.ron", &measured(here()));
    assert_eq!(best(&folder).0, "good.ron");
    let no_folder = UserProfiles::read(None, Some(&at("loop.ron")));
    assert_eq!((no_folder.profiles.len(), no_folder.warnings.len()), (0, 1));
}

#[test]
fn more_files_than_anyone_has_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..=MAX_FILES {
        fs::write(folder.path().join(format!("{n:03}.ron")), "").unwrap();
    }
    let warnings = best(&folder).2;
    assert!(
        warnings.len() == MAX_FILES + 1 && warnings[0].contains("65 profiles; only the first 64")
    );
}

#[test]
fn a_requested_profile_is_used_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = keep(&folder, "mine.ron", &measured(here()));
    let given = ProfileSource::from(path.as_path());
    let found = find(&Device::Cpu, SCALAR, Some(&given)).unwrap();
    assert_eq!(
        (&found.origin, found.profile.device.name.as_str()),
        (&Origin::File(path.clone()), "here")
    );
    // All clones share one reading of the file.
    fs::remove_file(&path).unwrap();
    assert_eq!(given.clone().profile().unwrap(), found.profile);
    let missing = find(&Device::Cpu, SCALAR, Some(&path.into())).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
    let kept = ProfileSource::from(measured(here()));
    assert_eq!(find(&Device::Cpu, SCALAR, Some(&kept)).unwrap().origin, Origin::Program);
}

#[test]
fn a_cpu_gets_the_profile_of_its_instructions_and_maker() {
    let built_in = |name: &str, instructions: &str| {
        let (name, instructions) = (name.to_owned(), instructions.to_owned());
        let device = DeviceSpec { name, instructions, ..here() };
        let found = UserProfiles::default().best(&device, SCALAR);
        (found.origin.to_string(), found.profile.fit(&device))
    };
    let expected = |name: &str, fit| (format!("built in as {name}"), fit);
    let intel = "Intel(R) Xeon(R) CPU";
    assert_eq!(built_in(intel, "avx512"), expected("cpu-intel", Fit::SameArchitecture));
    assert_eq!(built_in("AMD EPYC 9654", "avx512"), expected("cpu", Fit::SameArchitecture));
    assert_eq!(built_in(intel, "avx2"), expected("cpu-avx2", Fit::SameArchitecture));
    assert_eq!(built_in(intel, "portable"), expected("cpu-avx2", Fit::SameKind));
}

#[test]
fn a_gpu_of_another_generation_gets_the_generic_profile() {
    let h200 =
        Profile::parse("h200", include_str!("../../../models/nvidia-h200.ron")).unwrap().device;
    let profiles = UserProfiles::default();
    let origin = |device: &DeviceSpec| profiles.best(device, SCALAR).origin;
    assert_eq!(origin(&h200), Origin::BuiltIn("nvidia-h200".to_owned()));
    let a100 = DeviceSpec {
        name: "NVIDIA A100".to_owned(),
        instructions: "sm_80".to_owned(),
        threads: 108,
        ..h200
    };
    let found = profiles.best(&a100, SCALAR);
    assert_eq!(found.origin, Origin::BuiltIn("generic".to_owned()));
    assert_eq!(found.scale(&a100).shared, 1.0 / 108.0);
}

proptest! {
    /// For any accepted profile a plan is found, and every prediction is a number.
    #[test]
    fn no_profile_that_is_read_keeps_a_plan_from_being_chosen(
        numbers in prop::collection::vec(prop::sample::select(vec![0.0, 1e-300, 1.0, 1e12]), 18),
        cache in prop::sample::select(vec![1.0, 1e15]),
        threads in prop::sample::select(vec![1, usize::MAX]),
        spec in prop::sample::select(vec![
            "dense,n=0", "poisson2d,n=40", "webbase,rows=2k", "circuit,rows=2k",
        ]),
    ) {
        let mut profile = measured(DeviceSpec { threads, ..here() });
        profile.cache_bytes = cache;
        for (i, c) in profile.coefficients.values_mut().flat_map(|k| k.values_mut()).enumerate() {
            let number = |at: usize| numbers[(at + i) % numbers.len()];
            let packing = [16, 17, 18].map(number);
            *c = crate::tuning::cost::Coefficients::new(std::array::from_fn(number), packing);
        }
        let text = ron::to_string(&profile).unwrap();
        let profile = Arc::new(Profile::parse("hostile", &text).unwrap());
        let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let analysis = Analysis::of(a.view());
        let request = Request::new(&analysis, SCALAR, crate::memory::limit());
        let decision = select::select(&analysis, &here(), profile, request).unwrap();
        let predictions = decision.candidates.iter().filter_map(|c| c.prediction);
        prop_assert!(predictions.map(|p| p.amortised(1)).all(f64::is_finite));
        // The spelling of the chosen plan is accepted as a request.
        prop_assert_eq!(decision.plan.to_string().parse::<Plan>().unwrap(), decision.plan);
    }
}

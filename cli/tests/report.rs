//! The pages of `--report`, opened in a real browser.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Browsers that print the document of a page.
const BROWSERS: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Environment variable that is 1 if a browser is required.
const REQUIRED: &str = "SPARSEOP_REQUIRE_BROWSER";

/// Script that inspects the page from within.
const PROBE: &str = include_str!("data/report_probe.js");

/// Time limit: a browser takes about a second, on a busy machine longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The browser, if any. Prints a message if there is none.
fn browser() -> Option<&'static PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let folders: Vec<PathBuf> =
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        let paths =
            BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        paths.into_iter().find(|path| path.is_file())
    });
    if found.is_none() {
        let missing = format!("none of {} is in PATH", BROWSERS.join(", "));
        let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
        assert!(!required, "{REQUIRED}=1: {missing}");
        println!("skipped: {missing}");
    }
    found.as_ref()
}

/// The document that the browser makes of a page, in a window `width` pixels wide. It must print no
/// errors.
fn open(browser: &Path, page: &Path, width: u32) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = assert_cmd::Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
        ])
        .arg("--virtual-time-budget=10000")
        .arg(format!("--window-size={width},2000"))
        .arg(format!("--user-data-dir={}", home.path().display()))
        .arg(format!("file://{}", page.display()))
        .timeout(PATIENCE)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let complaints: Vec<&str> =
        said.lines().filter(|line| line.contains("CONSOLE") || line.contains("Uncaught")).collect();
    assert!(complaints.is_empty(), "{}: {}", page.display(), complaints.join("\n"));
    String::from_utf8(output.stdout).unwrap()
}

/// Findings of the probe on a page in a window `width` pixels wide.
fn probed(browser: &Path, page: &Path, width: u32) -> Value {
    let text = fs::read_to_string(page).unwrap();
    // The page allows no scripts. The copy with the probe allows this one.
    let policy = "default-src 'none'";
    assert!(text.contains(policy), "the page forbids everything it does not need");
    let text = text.replace(policy, "default-src 'none'; script-src 'unsafe-inline'");
    let copy = page.with_file_name("probed.html");
    fs::write(&copy, text.replace("</body>", &format!("<script>{PROBE}</script></body>"))).unwrap();
    let document = open(browser, &copy, width);
    let (_, seen) = document.split_once("<pre id=\"probe\">").expect("the probe has run");
    let seen = seen.split_once("</pre>").unwrap().0;
    let seen = seen
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&nbsp;", "\u{a0}")
        .replace("&amp;", "&");
    serde_json::from_str(&seen).unwrap()
}

/// A page that `sparseop` writes with these arguments, in a folder of its own.
fn page(args: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    sparseop(args).arg("--report").arg(&page).assert().success();
    (folder, page)
}

/// Requirements for every page: readable, within its borders, and accessible to screen readers.
fn assert_tidy(seen: &Value) {
    assert_eq!(seen["misplaced"], serde_json::json!([]), "labels");
    assert_eq!((&seen["mute"], seen["overflow"].as_i64() <= Some(0)), (&0.into(), true), "{seen}");
}

#[test]
fn an_analysis_shows_the_matrix_the_thresholds_and_the_decision() {
    let Some(browser) = browser() else { return };
    let (_folder, page) = page(&["analyze", "gallery:circuit,rows=30k"]);
    // The page itself, without the probe.
    let document = open(browser, &page, 1200);
    assert!(document.contains("</html>") && !document.contains("<script"));
    let seen = probed(browser, &page, 1200);
    assert_tidy(&seen);
    assert_eq!(seen["title"], "Analysis: gallery:circuit,rows=30k");
    let matrix = &seen["matrices"][0];
    assert_eq!(matrix["name"], "gallery:circuit,rows=30k");
    let (bins, before) =
        (matrix["bins"].as_u64().unwrap(), matrix["bins_before_ell"].as_u64().unwrap());
    assert!(
        bins > 5 && (1..bins).contains(&before),
        "the threshold is between short and long rows: {matrix}"
    );
    assert!(matrix["sections"].as_u64() > Some(0) && matrix["roofline"] == 1, "{matrix}");
    let picture = &matrix["pictures"][0];
    assert_eq!(
        (&picture["width"], &picture["height"]),
        (&255.into(), &255.into()),
        "118 rows a pixel"
    );
    assert_eq!(picture["diagonal"].as_f64(), Some(1.0), "the diagonal is full");
    let decision = matrix["decision"].as_str().unwrap();
    let chosen = matrix["chosen"][0].as_str().unwrap();
    assert!(
        decision.contains(&format!("plan     {chosen}, chosen for 1000 products")),
        "{decision}"
    );
    assert_eq!(
        (&matrix["points"], &matrix["flat_bars"]),
        (&0.into(), &0.into()),
        "nothing was timed"
    );
}

#[test]
fn a_benchmark_has_a_bar_for_every_run() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    // A name that is markup unless it is escaped.
    let name = "a<b>&\"c'<script>alert(1)<!--.mtx";
    let file = folder.path().join(name);
    sparseop(&["gallery", "write", "lognormal,rows=2k"]).arg(&file).assert().success();
    let page = folder.path().join("page.html");
    let plans = "auto,csr(scalar),ell,hyb(width:8),sell(c:32,sigma:512)";
    let matrices =
        [file.to_str().unwrap(), "gallery:small", "gallery:banded,rows=2k", "gallery:lp,rows=20"];
    let args =
        ["--plans", plans, "--seconds", "0.01", "--json", "--report", page.to_str().unwrap()];
    let results = stdout(&[&["bench"], &matrices[..], &args].concat());
    let results: Vec<Value> =
        results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    open(browser, &page, 1200);
    for width in [1200, 400] {
        let seen = probed(browser, &page, width);
        assert_tidy(&seen);
        assert_eq!((&seen["regrets"], &seen["links"]), (&4.into(), &4.into()));
        let class = folder.path().file_name().unwrap().to_str().unwrap();
        let mut classes = [class, "small", "banded", "lp"];
        classes.sort_unstable();
        assert_eq!(seen["classes"], serde_json::json!(classes));
        assert_eq!(seen["matrices"][0]["name"], name);
        for (matrix, result) in seen["matrices"].as_array().unwrap().iter().zip(&results) {
            let runs = result["runs"].as_array().unwrap();
            assert_eq!(
                (&matrix["bars"], &matrix["flat_bars"]),
                (&runs.len().into(), &0.into()),
                "{matrix}"
            );
            assert_eq!(
                matrix["points"].as_u64(),
                Some(runs.len() as u64 - 1),
                "the baseline is not predicted"
            );
            assert_eq!(matrix["chosen"], serde_json::json!([result["auto_plan"]]));
            let fastest = runs.iter().min_by(|a, b| {
                let median = |run: &Value| run["median_us"].as_f64().unwrap();
                median(a).total_cmp(&median(b))
            });
            let first = matrix["names"][0].as_str().unwrap();
            assert!(
                first.ends_with(fastest.unwrap()["plan"].as_str().unwrap()),
                "fastest first: {matrix}"
            );
        }
    }
}

#[test]
fn a_tuning_run_shows_its_choices_the_worst_first() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (profile, records, page) =
        (path("mine.ron"), path("mine.zst"), folder.path().join("page.html"));
    let matrices = ["gallery:small,n=60", "gallery:banded,rows=2k", "gallery:lognormal,rows=2k"];
    let args = [
        "--seconds",
        "0.005",
        "--dtype",
        "f32",
        "--no-remember",
        "--out",
        &profile,
        "--records",
        &records,
    ];
    sparseop(&[&["tune"], &matrices[..], &args].concat()).assert().success();
    // Drawn from the records, so that the times on the page are those of the result.
    let again = ["tune", "--from", &records, "--json", "--report", page.to_str().unwrap()];
    let result: Value = serde_json::from_str(&stdout(&again)).unwrap();
    open(browser, &page, 1200);
    for width in [1200, 400] {
        let seen = probed(browser, &page, width);
        assert_tidy(&seen);
        assert_eq!(seen["title"], "Tuning: 3 matrices");
        assert_eq!((&seen["regrets"], &seen["links"]), (&3.into(), &3.into()));
        assert_eq!(seen["classes"], serde_json::json!(["banded", "lognormal", "small"]));
        let shown = seen["matrices"].as_array().unwrap();
        let worst = result["worst"].as_array().unwrap();
        assert_eq!((shown.len(), worst.len()), (3, 3));
        for (matrix, choice) in shown.iter().zip(worst) {
            assert_eq!(matrix["name"], choice["matrix"]);
            assert_eq!(matrix["chosen"], serde_json::json!([choice["chosen"]["plan"]]));
            assert_eq!(matrix["names"][0], choice["fastest"]["plan"], "fastest first");
            let bars = matrix["bars"].as_u64().unwrap();
            assert!(bars > 8 && matrix["flat_bars"] == 0 && matrix["bins"] == 0, "{matrix}");
            let (points, all) = (matrix["points"].as_u64().unwrap(), bars);
            assert!(points > 4 && points <= all, "what was predicted has a point: {matrix}");
            let decision = matrix["decision"].as_str().unwrap();
            assert!(decision.contains("predicted") && decision.contains("measured"), "{decision}");
        }
    }
}

#[test]
fn an_unwritable_page_is_refused_before_the_work() {
    for args in [
        &["analyze", "gallery:small"][..],
        &["bench", "gallery:small"],
        &["tune", "gallery:small", "--out", "x.ron"],
    ] {
        let assert = sparseop(args).args(["--report", "/nowhere/page.html"]).assert().code(1);
        let output = assert.get_output();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            message.contains("/nowhere is not a folder: the report could not be written"),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    sparseop(&["analyze", "nowhere.mtx", "--report"]).arg(&page).assert().code(1);
    assert!(!page.exists(), "there is nothing to show");
}

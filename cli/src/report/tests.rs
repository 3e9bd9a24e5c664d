//! Tests of the drawings without a browser.

use super::*;
use sparseop::Plan;
use sparseop::analysis::Analysis;
use sparseop::matrix::gallery;

fn run(name: &str, measured: Option<f64>, predicted: Option<f64>) -> PlottedRun {
    let format = name.parse::<Plan>().ok().map(|plan| plan.format());
    PlottedRun {
        name: name.to_owned(),
        format,
        chosen: false,
        measured,
        predicted,
        bytes: Some(8000),
        remark: None,
    }
}

/// A matrix with three plans, the second fastest of them chosen, and a baseline.
fn matrix(name: &str) -> Matrix {
    let a = "circuit,rows=2k".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let rows = Analysis::of(a.view()).rows;
    let mut runs = vec![
        run("coo", Some(4e-6), Some(1e-6)),
        run("sell(c:16,sigma:1024)", Some(2.2e-6), Some(2e-6)),
        run("csr(scalar)", Some(2e-6), Some(2.1e-6)),
        run("sprs csr", Some(6.6e-6), None),
    ];
    runs[1].chosen = true;
    runs[3].bytes = None;
    let plans: Vec<Plan> = ["coo", "hyb(width:5)"].map(|text| text.parse().unwrap()).to_vec();
    let thresholds = Thresholds::of(plans.iter(), &rows.histogram, None, ScalarKind::F64);
    Matrix {
        name: name.to_owned(),
        class: "circuit".to_owned(),
        scalar: ScalarKind::F64,
        device: "a device".to_owned(),
        measurement: vec![("cache", "company".to_owned())],
        rows,
        thresholds: Some(thresholds),
        pattern: Some(Raster::of(a.view()).unwrap()),
        busy: None,
        bandwidth: Some(8e9),
        runs,
        decision: "because it is fast".to_owned(),
    }
}

fn page(matrices: Vec<Matrix>) -> String {
    let mut page = Page::new("Benchmark");
    matrices.into_iter().for_each(|matrix| page.add(matrix));
    page.render().into_string()
}

#[test]
fn regret_is_against_our_fastest_and_speed_up_against_the_best_baseline() {
    let mut m = matrix("a");
    assert!((m.regret().unwrap() - 1.1).abs() < 1e-12);
    assert!((m.speed_up().unwrap() - 3.0).abs() < 1e-12);
    assert_eq!(m.roofline(&m.runs[0]), Some(1e-6));
    m.runs.retain(|run| run.chosen);
    assert_eq!((m.regret(), m.speed_up()), (None, None), "there was nothing to choose from");
}

#[test]
fn one_matrix_has_every_picture() {
    let page = page(vec![matrix("a")]);
    let count = |text: &str| page.matches(text).count();
    assert_eq!(count("<rect class=\"bar "), 4);
    assert_eq!(count("<rect class=\"bar chosen\""), 1);
    assert_eq!((count("<path class=\"roofline\""), count("class=\"predicted\"")), (1, 3));
    assert_eq!(count("<circle"), 3, "a point for every run that was predicted and measured");
    assert_eq!((count("<line class=\"ell\""), count("ELL width 5")), (1, 2));
    assert!(count("<line class=\"section") > 0 && count("data:image/png;base64,iVBOR") == 1);
    assert!(
        page.contains("because it is fast") && page.contains("10.0 %") && page.contains("3.00×")
    );
    assert!(page.contains("<dt>cache</dt><dd>company</dd>"), "how it was measured");
    assert_eq!((count("<script"), count("http://"), count("https://")), (0, 0, 0));
}

#[test]
fn many_matrices_are_summed_up_and_folded() {
    let mut matrices: Vec<Matrix> = (0..300).map(|i| matrix(&format!("matrix {i}"))).collect();
    matrices[7].class = "other".to_owned();
    matrices[7].runs[2].measured = Some(1.1e-6);
    let page = page(matrices);
    let count = |text: &str| page.matches(text).count();
    assert_eq!((count("<details"), count(" open")), (300, 0));
    assert_eq!(count("<circle class=\"regret\""), 300);
    assert!(page.contains("worst 100.0 %") && page.contains("matrix 7 in f64"));
    assert_eq!(count("<a href=\"#matrix-"), 300);
    assert!((1..400).all(|i| count(&format!("id=\"matrix-{i}\"")) == usize::from(i <= 300)));
    assert_eq!(count("<path class=\"many "), 3, "900 points are three paths");
}

#[test]
fn a_page_of_nothing_much_is_still_a_page() {
    let a = sparseop::matrix::CsrMatrix::<f32>::zeros(0, 0).unwrap();
    let mut bare = matrix("nothing");
    bare.rows = Analysis::of(a.view()).rows;
    (bare.pattern, bare.thresholds, bare.bandwidth) =
        (Some(Raster::of(a.view()).unwrap()), None, None);
    bare.runs = vec![run("coo", None, None)];
    bare.runs[0].remark = Some("too <large>".to_owned());
    let text = page(vec![bare]);
    assert!(text.contains("Nothing was timed.") && text.contains("too &lt;large&gt;"));
    assert!(!text.contains("NaN") && !text.contains("inf"));
    let mut instant = matrix("instant");
    instant.runs.iter_mut().for_each(|run| run.measured = Some(0.0));
    let text = page(vec![instant]);
    assert!(
        !text.contains("NaN") && !text.contains("inf"),
        "a clock too coarse draws nothing wrong"
    );
}

#[test]
fn overlong_bars_are_cut() {
    let mut m = matrix("a");
    m.runs[0].measured = Some(1.0);
    let text = page(vec![m]);
    assert_eq!(text.matches("class=\"cut\"").count(), 1);
    assert!(text.contains("1.00 s"), "its number is not cut");
}

#[test]
fn digits_stand_in_threes() {
    assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
}

#[test]
fn a_busy_machine_is_named_in_place_of_shares_and_losses() {
    let mut m = matrix("a");
    let run = m.runs[0].clone();
    assert_eq!(m.share(&run, 2e-6).as_deref(), Some("50 %"));
    assert_eq!(m.share(&run, 3e-8).as_deref(), Some("in cache"), "not 3333 %");
    m.busy = Some("this machine is busy: the median of 2 of 3 runs".to_owned());
    assert_eq!((m.share(&run, 2e-6), m.quiet_regret()), (None, None));
    let text = page(vec![m]);
    assert!(text.contains("this machine is busy: the median") && !text.contains(" lost<"));
}

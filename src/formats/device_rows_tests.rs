//! Tests that a GPU packs the same bytes as the host. Nothing is tested without a GPU.

use super::*;
use crate::device::{Device, Gpu};
use crate::formats::{FormatKind, Plan, ResidentMatrix};
use crate::matrix::CsrMatrix;
use crate::testing::{Oracle, awkward, gpu, product, scattered, small_gallery, x_vector};

/// Orders that the examples lack: several windows in a block, and windows that are sorted digit by
/// digit.
const ORDERS: [&str; 4] = [
    "sell(c:32,sigma:2)",
    "sell(c:7,sigma:40)",
    "sell(c:1,sigma:8192)",
    "sell(c:65536,sigma:9000)",
];

/// Largest number of slots of a matrix that is compared as text.
const MAX: u64 = 1 << 22;

/// Every example of the formats, and other orders.
fn plans() -> Vec<Plan> {
    let formats = [FormatKind::Ell, FormatKind::Sell, FormatKind::Jds];
    let examples = formats.iter().flat_map(|format| format.examples());
    examples.chain(&ORDERS).map(|text| text.parse().unwrap()).collect()
}

/// Packs on both sides and compares, unless there are too many slots.
fn check<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, name: &str) {
    let device = Device::Cuda(gpu);
    let there = CsrSource::upload(a.view(), gpu).unwrap();
    let (x, analysis) = (x_vector(a.ncols()), crate::analysis::Analysis::of(a.view()));
    let oracle = Oracle::of(a.view(), &x);
    assert_eq!(Histogram::on_gpu(&there).unwrap(), analysis.rows.histogram, "{name}");
    for plan in plans() {
        let context = format!("{name} in {}, {plan}", T::KIND);
        if plan.work(&analysis, T::KIND).slots > MAX {
            continue;
        }
        let here = ResidentMatrix::on(&device, plan.pack(a.view()).unwrap()).unwrap();
        let there = ResidentMatrix::packed_on_device(&plan, &there).unwrap();
        let there = there.unwrap_or_else(|| panic!("{context}: left to the host"));
        let text = |a: &ResidentMatrix<T>| match a {
            ResidentMatrix::Gpu(_, a) => a.text().unwrap(),
            ResidentMatrix::Host(_) => panic!("{context}: in the memory of the host"),
        };
        let (expected, found) = (text(&here), text(&there));
        if expected != found || expected.is_empty() {
            let differs = expected.bytes().zip(found.bytes()).position(|(a, b)| a != b);
            let at = differs.unwrap_or_default().saturating_sub(60);
            let near = |text: &str| text.chars().skip(at).take(120).collect::<String>();
            panic!("{context}: `{}`, and `{}` on the host", near(&found), near(&expected));
        }
        assert_eq!(there.bytes(), here.bytes(), "{context}");
        assert_eq!(there.residency(), here.residency(), "{context}");
        let y = product(&device, &there, a.nrows(), &x);
        oracle.check(&y).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
    }
}

fn check_both(gpu: Gpu, name: &str, length: impl Fn(usize) -> usize + Copy) {
    check(gpu, &scattered::<f32>(3000, 40_000, length), name);
    check(gpu, &scattered::<f64>(3000, 40_000, length), name);
}

#[test]
fn awkward_matrices() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    awkward::<f32>().iter().for_each(|(name, a)| check(gpu, a, name));
    awkward::<f64>().iter().for_each(|(name, a)| check(gpu, a, name));
}

#[test]
fn rows_of_many_portions() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    check_both(gpu, "rows of 64 and 65", |row| 64 + row % 2);
    check_both(gpu, "a long row", |row| if row == 1500 { 1000 } else { row % 7 });
    // Longer than blocks sort.
    let row = |row| if row == 17 { (1 << 18) + 5 } else { row % 5 };
    check(gpu, &scattered::<f32>(90, 1 << 19, row), "a row of a quarter of a million");
}

fn galleries<T: Scalar>(gpu: Gpu) {
    for spec in small_gallery() {
        check(gpu, &spec.generate::<T>().unwrap(), &spec.to_string());
    }
}

#[test]
fn the_gallery_in_f32() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    galleries::<f32>(gpu);
}

#[test]
fn the_gallery_in_f64() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    galleries::<f64>(gpu);
}

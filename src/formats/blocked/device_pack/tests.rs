//! Tests that a GPU packs the same bytes as the host. Nothing is tested without a GPU.

use super::super::panel::tests::panels;
use super::super::{HostBlocked, Pieces, SlotValues, pack as host_pack};
use super::*;
use crate::device::{Device, Gpu};
use crate::formats::ResidentMatrix;
use crate::matrix::{CsrMatrix, gallery};
use crate::testing::{Oracle, awkward, few_cases, gpu, product, small_gallery, x_vector};
use std::sync::Arc;

fn words<N: Copy + Into<u64>>(numbers: &[N]) -> Vec<u64> {
    numbers.iter().map(|&number| number.into()).collect()
}

/// The arrays of pieces by name.
fn of_pieces<T: Scalar, C: Copy + Into<u64>>(
    pieces: &Pieces<T, C>,
) -> [(&'static str, Vec<u64>); 5] {
    let values = match &pieces.values {
        SlotValues::Plain(values) => values.iter().map(|value| value.bits()).collect(),
        SlotValues::Equal(value) => vec![value.bits()],
    };
    [
        ("cols", words(&pieces.cols)),
        ("values", values),
        ("flags", words(&pieces.flags)),
        ("piece_ptr", words(&pieces.piece_ptr)),
        ("targets", words(&pieces.targets)),
    ]
}

/// All arrays of a matrix by name.
fn arrays<T: Scalar>(a: &HostBlocked<T>) -> Vec<(String, Vec<u64>)> {
    let near = of_pieces(&a.near).map(|(name, words)| (format!("near {name}"), words));
    let far = of_pieces(&a.far).map(|(name, words)| (format!("far {name}"), words));
    let tables = [
        ("hot".to_owned(), words(&a.hot)),
        ("tile_ptr".to_owned(), words(&a.tiles.tile_ptr)),
        ("windows".to_owned(), words(a.tiles.windows.as_flattened())),
        ("split rows".to_owned(), words(&a.split.rows)),
        ("split_ptr".to_owned(), words(&a.split.ptr)),
        ("order".to_owned(), words(&a.order)),
    ];
    tables.into_iter().chain(near).chain(far).collect()
}

/// Packs on both sides with tiles of at most `columns` columns, and compares.
fn check<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, plan: &BlockedPlan, columns: u32, name: &str) {
    let context = format!("{name} in {}, blocked{plan} of {columns} columns", T::KIND);
    let there = CsrSource::upload(a.view(), gpu).unwrap();
    let packed = pack(plan, columns, &there).unwrap();
    if plan.x == TileColumns::Windows && cells_of(&panels(a, columns)) > most_cells(a.nnz()) {
        assert!(packed.is_none(), "{context}: many empty cells");
        return;
    }
    let packed = packed.unwrap_or_else(|| panic!("{context}: left to the host"));
    let host = host_pack::pack_columns(plan, columns, a.view()).unwrap();
    let found = arrays(&packed.to_host().unwrap());
    for ((what, expected), (_, found)) in arrays(&host).into_iter().zip(found) {
        let differs = expected.iter().zip(&found).position(|(expected, found)| expected != found);
        if expected.len() != found.len() || differs.is_some() {
            let at = differs.map(|at| (at, expected[at], found[at]));
            let lengths = (expected.len(), found.len());
            panic!("{context}: {what}, lengths {lengths:?}, first difference {at:?}");
        }
    }
    let resident = ResidentMatrix::Gpu(gpu, Arc::new(packed));
    let x = x_vector(a.ncols());
    let y = product(&Device::Cuda(gpu), &resident, a.nrows(), &x);
    Oracle::of(a.view(), &x).check(&y).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
}

/// Checks tiles of several widths.
fn check_all<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, name: &str) {
    for x in [TileColumns::Windows, TileColumns::Hot] {
        for packed in [false, true] {
            let plan = BlockedPlan { x, kib: 192, packed };
            let widths = [64, 8, plan.columns(T::KIND)];
            for &columns in &widths[..if few_cases() { 1 } else { 3 }] {
                check(gpu, a, &plan, columns, name);
            }
        }
    }
}

#[test]
fn awkward_matrices() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    awkward::<f32>().iter().for_each(|(name, a)| check_all(gpu, a, name));
    awkward::<f64>().iter().for_each(|(name, a)| check_all(gpu, a, name));
}

fn galleries<T: Scalar>(gpu: Gpu) {
    for spec in small_gallery() {
        for values in gallery::Values::ALL {
            let spec = spec.clone().with_values(values);
            check_all(gpu, &spec.generate::<T>().unwrap(), &spec.to_string());
        }
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

#[test]
fn rows_of_many_pieces_and_panels_of_many_rows() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    let texts = ["lognormal,rows=9000", "lp,rows=300", "rmat,scale=14", "webbase,rows=40000"];
    for text in &texts[..if few_cases() { 1 } else { 4 }] {
        let Ok(spec) = text.parse::<gallery::Spec>() else { panic!("{text}") };
        let a = spec.generate::<f64>().unwrap();
        for x in [TileColumns::Windows, TileColumns::Hot] {
            for columns in [64, 512, 4096] {
                let plan = BlockedPlan { x, kib: 192, packed: false };
                check(gpu, &a, &plan, columns, text);
            }
        }
    }
}

//! A few products with plans of every format on a small matrix: what Miri interprets in minutes.
//! The matrix is not analysed, which takes Miri as long as everything else.

use super::conformance::{product, scattered};
use super::{Oracle, scaled, update, x_vector};
use crate::formats::{FormatKind, Layout, Plan, ResidentMatrix, SpmmData, SpmmShape};
use crate::{Device, Error, Scalar};

/// Checks every example plan of a format on the CPU: packing, products, new values, SpMM.
pub(crate) fn check_few<T: Scalar>(format: FormatKind) {
    let (nrows, ncols) = (40, 30);
    // Under Miri it has several tasks. One row is in some of them, others are empty.
    let a = scattered(nrows, ncols, |row| match row {
        21 => 150,
        22..26 => 0,
        _ => row % 5,
    });
    let x = x_vector::<T>(ncols);
    let oracle = Oracle::of(a.view(), &x);
    // Miri takes half a minute for a plan: it gets at most five of a format.
    let examples = format.examples();
    let step = if cfg!(miri) { examples.len().div_ceil(5) } else { 1 };
    for text in examples.iter().step_by(step) {
        let plan: Plan = text.parse().unwrap();
        let packed = match plan.pack(a.view()) {
            Err(Error::PlanLimit { .. }) => continue,
            packed => packed.unwrap(),
        };
        let matrix = ResidentMatrix::on(&Device::Cpu, packed).unwrap();
        assert_eq!(matrix.unpack().unwrap(), a, "{text}");
        let check = |y: &[T]| oracle.check(y).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
        check(&product(&Device::Cpu, &matrix, nrows, &x));
        scaled::check(&Device::Cpu, &matrix, &a, &x, text);
        update::check(&Device::Cpu, &plan, &a, &x, text);
        let data = SpmmData::of(&matrix, ncols, true).unwrap().unwrap();
        let layout = Layout::ColumnMajor;
        let count = matrix.spmm_limit(layout).min(5);
        let shape = SpmmShape { count, ncols, nrows, layout };
        let times = |v: usize| x.iter().map(move |x| T::from_f64(x.to_f64() * (v + 1) as f64));
        let vectors: Vec<Vec<T>> = (0..count).map(|v| times(v).collect()).collect();
        let mut y = vec![T::from_f64(f64::NAN); count * nrows];
        matrix.multiply_multivector(&data, shape, &vectors.concat(), &mut y).unwrap();
        for (x, y) in vectors.iter().zip(y.chunks(nrows)) {
            let checked = Oracle::of(a.view(), x).check(y);
            checked.unwrap_or_else(|wrong| panic!("{text}, {count} vectors: {wrong}"));
        }
    }
}

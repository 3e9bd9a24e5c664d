//! The axpby epilogue of SpMM against products that are scaled by hand.

use super::devices;
use super::spmm::{apply_multi, nothing, same_bits, skewed};
use crate::device::{DeviceVec, Factor, Stream};
use crate::formats::{Layout, Multivector, Plan};

#[test]
fn the_epilogue_of_several_vectors() {
    let case = skewed::<f64>();
    let plans = ["csr", "sell", "hyb(width:2)"].map(|plan| plan.parse::<Plan>().unwrap());
    for (device, plan) in
        devices().iter().flat_map(|device| plans.iter().map(move |plan| (device, plan)))
    {
        let (op, stream) = (case.operator(device, plan), Stream::new(device).unwrap());
        for (k, layout) in [(1, Layout::RowMajor), (3, Layout::ColumnMajor), (8, Layout::RowMajor)]
        {
            let x = case.x(k, layout);
            let mut product = nothing(k * op.nrows());
            apply_multi(&op, k, &x, &mut product, layout).unwrap();
            let before: Vec<f64> = (0..product.len()).map(|i| (i % 13) as f64).collect();
            for (alpha, beta) in
                [(1.0, 0.0), (2.0, 0.0), (0.0, 3.0), (0.0, 0.0), (-0.5, 1.0), (2.0, -3.0)]
            {
                let expected = |i: usize| match (alpha, beta) {
                    (0.0, 0.0) => 0.0,
                    (0.0, _) => beta * before[i],
                    (_, 0.0) => alpha * product[i],
                    _ => alpha * product[i] + beta * before[i],
                };
                let expected: Vec<f64> = (0..before.len()).map(expected).collect();
                let context = format!("{alpha} A X + {beta} Y, {k} vectors, {plan} on {device}");
                let start = if beta == 0.0 { nothing(before.len()) } else { before.clone() };
                let mut y = start.clone();
                let (of_x, of_y) =
                    (Multivector::new(&x, k, layout), Multivector::new(&mut y, k, layout));
                op.apply_multi_with(alpha, of_x, beta, of_y).unwrap();
                // A fused multiply-add rounds once; the sum here rounds twice.
                let near = |a: &f64, b: &f64| {
                    (a - b).abs() <= 1e-12 * (1.0 + a.abs() + b.abs())
                        || a.to_bits() == b.to_bits()
                        || (a.is_nan() && b.is_nan())
                };
                assert!(y.iter().zip(&expected).all(|(a, b)| near(a, b)), "{context}");
                let on_device = DeviceVec::from_slice(device, &x).unwrap();
                let factors = DeviceVec::from_slice(device, &[beta, alpha]).unwrap();
                let mut there = DeviceVec::from_slice(device, &start).unwrap();
                let of_x = Multivector::new(&on_device, k, layout);
                let of_y = Multivector::new(&mut there, k, layout);
                if beta == 0.0 {
                    op.apply_multi_device_with(&stream, alpha, of_x, beta, of_y).unwrap();
                } else {
                    let alpha = Factor::Element(&factors, 1);
                    op.apply_multi_device_with(&stream, alpha, of_x, &factors, of_y).unwrap();
                }
                assert!(same_bits(&there.to_vec().unwrap(), &y), "on the device, {context}");
            }
        }
        let (x, mut y) = (case.x(2, Layout::RowMajor), nothing::<f64>(2 * op.nrows()));
        let of_y = Multivector::column_major(&mut y, 2);
        let refused = op.apply_multi(Multivector::row_major(&x, 2), of_y).unwrap_err().to_string();
        assert!(refused.contains("x has 2 vectors in RowMajor layout and y has 2"), "{refused}");
    }
}

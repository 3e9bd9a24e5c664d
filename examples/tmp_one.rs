//! tmp
use sparseop::{matrix::gallery::Spec, tuning::stopwatch::*, *};
fn go<T: Scalar>(spec: &str, plans: &[String]) {
    let a = spec.parse::<Spec>().unwrap().generate::<T>().unwrap();
    let x = sparseop::testing::x_vector::<T>(a.ncols());
    let ops: Vec<_> = plans
        .iter()
        .map(|p| {
            SparseOpBuilder::new()
                .tuning(Tuning::Fixed(p.parse().unwrap()))
                .memory_limit(1 << 40)
                .build(&a)
                .unwrap()
        })
        .collect();
    let mut y = vec![T::ZERO; a.nrows()];
    let y = std::cell::RefCell::new(&mut y);
    let mut fs: Vec<_> = ops.iter().map(|o| || o.apply(&x, &mut y.borrow_mut()).unwrap()).collect();
    let mut c: Vec<&mut dyn FnMut()> = fs.iter_mut().map(|f| f as &mut dyn FnMut()).collect();
    let s = race(&mut c, Policy { warmup: 2, min_rounds: 5, max_rounds: 40, seconds: 2.0 });
    for (p, s) in plans.iter().zip(&s) {
        println!(
            "{spec} {} {p:28} {:9.1} us {:9.1} min {:.3} ns/nnz",
            T::KIND,
            s.median() * 1e6,
            s.min() * 1e6,
            s.median() * 1e9 / a.nnz() as f64
        );
    }
}
fn main() {
    let v: Vec<String> = std::env::args().skip(1).collect();
    let n: Vec<String> = v[1].split(';').map(|s| s.to_owned()).collect();
    if v.get(2).map_or(true, |s| s == "f32") {
        go::<f32>(&v[0], &n)
    };
    if v.get(2).map_or(true, |s| s == "f64") {
        go::<f64>(&v[0], &n)
    };
}

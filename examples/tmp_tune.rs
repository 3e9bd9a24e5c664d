//! tmp
use sparseop::{
    Scalar,
    matrix::gallery::Spec,
    tuning::{offline::*, stopwatch::Policy},
};
fn go<T: Scalar>(spec: &str) -> Measured {
    let a = spec.parse::<Spec>().unwrap().generate::<T>().unwrap();
    let m = Measured::of(&a, Policy { warmup: 1, min_rounds: 3, max_rounds: 15, seconds: 1.5 }).unwrap();
    let mut v: Vec<_> = m.times().map(|(p, t, k)| (p.to_string(), t, k)).collect();
    v.sort_by(|a, b| a.1.total_cmp(&b.1));
    println!("{spec} {} nnz {}", T::KIND, a.nnz());
    for (p, t, k) in &v {
        println!(
            "   {p:32} {:9.1} us {:.3} ns/nnz {:6.1} GB/s(csr)  pack {:.1} products",
            t * 1e6,
            t * 1e9 / a.nnz() as f64,
            (a.nnz() * (4 + T::KIND.size()) + a.nrows() * 4 + (a.nrows() + a.ncols()) * T::KIND.size())
                as f64
                / t
                / 1e9,
            k / t
        );
    }
    m
}
fn main() {
    for s in std::env::args().skip(1) {
        go::<f32>(&s);
        go::<f64>(&s);
    }
}

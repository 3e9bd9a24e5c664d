//! Properties of every generator.

use super::structure::RandomStructure;
use super::*;
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};
use std::collections::BTreeSet;

/// The suite at full size: name, rows, nonzeros, mean row length, and bounds of the longest row.
const TABLE: [(&str, f64, f64, f64, [usize; 2]); 15] = [
    ("poisson2d", 4.19e6, 21.0e6, 5.0, [5, 5]),
    ("poisson3d", 4.10e6, 28.5e6, 7.0, [7, 7]),
    ("stencil27", 2.10e6, 55.7e6, 26.6, [27, 27]),
    ("fem3d", 0.79e6, 61.7e6, 78.5, [81, 81]),
    ("femrandom", 0.90e6, 63.0e6, 70.0, [108, 108]),
    ("banded", 2.00e6, 33.8e6, 16.9, [25, 25]),
    ("road", 5.76e6, 14.3e6, 2.5, [4, 4]),
    ("uniform", 2.00e6, 32.0e6, 16.0, [22, 22]),
    ("rmat", 2.10e6, 32.4e6, 15.4, [55_000, 67_000]),
    ("webbase", 4.00e6, 19.3e6, 4.8, [2000, 5000]),
    ("circuit", 3.00e6, 16.8e6, 5.6, [370_000, 380_000]),
    ("lp", 4284.0, 12.4e6, 2890.0, [8100, 8200]),
    ("lognormal", 1.00e6, 24.3e6, 24.0, [4000, 5200]),
    ("dense", 6000.0, 36.0e6, 6000.0, [6000, 6000]),
    ("small", 1e4, 49.6e3, 5.0, [5, 5]),
];

fn near(found: f64, wanted: f64) -> bool {
    (found / wanted - 1.0).abs() <= 0.1
}

/// Mean and longest row length.
fn rows<T: Scalar>(a: &CsrMatrix<T>) -> (f64, usize) {
    let longest = a.row_ptr().windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
    (a.nnz() as f64 / a.nrows() as f64, longest)
}

fn assert_sorted<T: Scalar>(a: &CsrMatrix<T>, name: &str) {
    let sorted = |row| a.view().row(row).0.is_sorted_by(|a, b| a < b);
    assert!((0..a.nrows()).all(sorted), "{name}");
}

fn on_threads(threads: usize, spec: &Spec) -> CsrMatrix<f32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| spec.generate()).unwrap()
}

#[test]
fn the_suite_is_complete_and_its_names_are_unique() {
    assert!(suite().map(|s| s.entry().name).eq(TABLE.map(|t| t.0)));
    assert_eq!(list().iter().map(|e| e.name).collect::<BTreeSet<_>>().len(), list().len());
    for entry in list() {
        let keys: BTreeSet<_> =
            entry.parameters.iter().map(|p| p.key).chain(["values", "seed"]).collect();
        assert_eq!(keys.len(), entry.parameters.len() + 2, "{}", entry.name);
    }
}

#[test]
fn a_sweep_has_about_the_wished_entries() {
    assert!(sweep(1_000_000).count() > sweep(20_000).count());
    let specs: Vec<Spec> = sweep(20_000).collect();
    assert!(
        specs.len() > 40
            && specs.iter().all(|spec| spec.to_string().parse::<Spec>().unwrap() == *spec)
    );
    for spec in specs {
        let nnz = spec.generate::<f32>().unwrap().nnz() as f64;
        // Rows that are longer than the matrix is wide are cut off.
        assert!(nnz > 4000.0 && nnz < 30_000.0, "{spec}: {nnz}");
    }
}

#[test]
fn every_matrix_is_sorted_and_as_large_as_announced() {
    for spec in suite().map(|s| s.scaled_to(50_000)) {
        let a = spec.generate::<f64>().unwrap();
        let shape = spec.shape();
        assert_eq!((a.nrows(), a.ncols()), (shape.nrows, shape.ncols), "{spec}");
        // At this size R-MAT draws many edges twice, and chance has few rows to even out in `lp`.
        let ratio = a.nnz() as f64 / shape.nnz as f64;
        assert!(
            (0.5..1.5).contains(&ratio),
            "{spec}: {} entries, announced {}",
            a.nnz(),
            shape.nnz
        );
        assert_sorted(&a, &spec.to_string());
    }
}

#[test]
fn threads_do_not_matter_and_seeds_do() {
    for spec in suite().map(|s| s.scaled_to(200_000)) {
        let one = on_threads(1, &spec);
        assert!(one == on_threads(3, &spec), "{spec}");
        let other = spec.clone().with_seed(2).generate::<f32>().unwrap();
        assert!(one.values() != other.values(), "{spec}");
        let fixed = ["poisson2d", "poisson3d", "stencil27", "fem3d", "dense", "small"];
        assert_eq!(one.col_idx() == other.col_idx(), fixed.contains(&spec.entry().name), "{spec}");
    }
}

#[test]
fn values_are_as_asked() {
    for spec in suite().map(|s| s.scaled_to(20_000)) {
        let values = |v| spec.clone().with_values(v).generate::<f32>().unwrap().into_parts().2;
        assert!(values(Values::Random).iter().all(|v| (-0.5..0.5).contains(v)), "{spec}");
        assert!(values(Values::Pattern).iter().all(|&v| v == 1.0), "{spec}");
        let few: BTreeSet<u64> = values(Values::Few).iter().map(|v| v.bits()).collect();
        assert!(few.len() <= 16, "{spec}: {} values", few.len());
    }
}

#[test]
fn degenerate_sizes_are_matrices_too() {
    for entry in list() {
        for size in 0..3 {
            let key = entry.parameters[0].key;
            let spec: Spec = format!("{},{key}={size}", entry.name).parse().unwrap();
            let a = spec.generate::<f32>().unwrap();
            assert_eq!(a.nrows(), spec.shape().nrows, "{spec}");
            assert_sorted(&a, &spec.to_string());
        }
    }
    for text in [
        "lp,rows=3,columns=0",
        "circuit,rows=10,dense=99,length=99",
        "circuit,rows=9,length=0",
        "rmat,degree=0",
        "artificial,rows=5,nnz=100,deviation=50,longest=9",
        "artificial,rows=50,nnz=0,longest=0,band=0",
    ] {
        assert_sorted(&text.parse::<Spec>().unwrap().generate::<f32>().unwrap(), text);
    }
}

#[test]
fn scaling_comes_near_the_wish_and_keeps_the_character() {
    for (spec, (_, _, _, mean, _)) in suite().zip(TABLE) {
        let scaled = spec.scaled_to(2_000_000);
        let name = spec.entry().name;
        if name == "small" {
            assert_eq!(scaled, spec);
            continue;
        }
        // R-MAT sizes are powers of two; other steps are small in relation to two million.
        let nnz = scaled.shape().nnz as f64 / 2e6;
        assert!(
            (if name == "rmat" { 0.7..1.5 } else { 0.9..1.1 }).contains(&nnz),
            "{scaled}: {nnz}"
        );
        let (found, _) = rows(&scaled.generate::<f32>().unwrap());
        // The rows of a dense matrix shrink with the root, and a small R-MAT graph repeats more of
        // its edges.
        let mean = if name == "dense" { 2e6f64.sqrt() } else { mean };
        assert!(near(found, mean) || name == "rmat" && found > 12.0, "{scaled}: mean row {found}");
        assert!(scaled.scaled_to(1_000_000).shape().nnz < scaled.shape().nnz, "{scaled}");
    }
    assert_eq!("circuit".parse::<Spec>().unwrap().scaled_to(1_700_000).sizes()[1..], [5, 40_000]);
    assert_eq!("dense,n=3".parse::<Spec>().unwrap().scaled_to(0).sizes(), [1]);
}

#[test]
#[ignore = "generates half a gigabyte of matrix fifteen times over"]
fn the_full_suite_is_as_its_table_says() -> Result<(), Error> {
    for (spec, (name, nrows, nnz, mean, max)) in suite().zip(TABLE) {
        let a = spec.generate::<f32>()?;
        let (found, longest) = rows(&a);
        assert_sorted(&a, name);
        assert!(near(a.nrows() as f64, nrows), "{name}: {} rows", a.nrows());
        assert!(near(a.nnz() as f64, nnz), "{name}: {} entries", a.nnz());
        assert!(near(found, mean), "{name}: mean row {found}");
        assert!((max[0]..=max[1]).contains(&longest), "{name}: longest row {longest}");
    }
    Ok(())
}

/// Small matrices of `random`, of different sizes, and the structures drawn from their seeds.
fn drawn() -> impl Iterator<Item = (Spec, RandomStructure)> {
    (1..=400).map(|seed| {
        let nnz = [500, 2_000, 6_000, 20_000][seed as usize % 4];
        (format!("random,nnz={nnz},seed={seed}").parse().unwrap(), RandomStructure::draw(nnz, seed))
    })
}

#[test]
fn seeds_draw_matrices_of_the_announced_size() {
    for (spec, structure) in drawn() {
        let a = spec.generate::<f32>().unwrap();
        let shape = spec.shape();
        assert_eq!((a.nrows(), a.ncols()), (shape.nrows, shape.ncols), "{spec}");
        let wished = spec.sizes()[0] as f64;
        for nnz in [a.nnz(), shape.nnz] {
            assert!(
                (1.0 / 1.5..1.5).contains(&(nnz as f64 / wished)),
                "{spec}: {nnz}, {structure:?}"
            );
        }
        // `CsrMatrix::try_new` has checked that the columns are in range.
        assert_sorted(&a, &spec.to_string());
        assert!(rows(&a).1 <= a.ncols(), "{spec}");
        // Empty rows and columns are few in relation to the entries.
        assert!(a.nrows() <= 3 * a.nnz() && a.ncols() <= 3 * a.nnz(), "{spec}: {structure:?}");
    }
}

#[test]
fn seeds_draw_the_same_on_any_number_of_threads() {
    for (spec, _) in drawn().step_by(4) {
        let one = on_threads(1, &spec);
        assert!(one == on_threads(3, &spec) && one == on_threads(3, &spec), "{spec}");
    }
}

#[test]
fn seeds_draw_everything() {
    let variant = |value: &dyn std::fmt::Debug| {
        let text = format!("{value:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    };
    let count = |of: &dyn Fn(&RandomStructure) -> String| {
        let found: BTreeSet<String> =
            drawn().take(200).map(|(_, structure)| of(&structure)).collect();
        found.len()
    };
    assert_eq!(count(&|s| variant(&s.law)), 9);
    assert_eq!(count(&|s| variant(&s.order)), 5);
    assert_eq!(count(&|s| variant(&s.columns)), 7);
    assert_eq!(count(&|s| variant(&s.values)), 3);
    assert_eq!(count(&|s| s.unknowns.to_string()), 5);
    assert_eq!(count(&|s| format!("{:?}", s.shape().nrows.cmp(&s.shape().ncols))), 3);
    let sizes: Vec<usize> =
        (1..=200).map(|seed| RandomStructure::draw(0, seed).shape().nnz).collect();
    assert!(sizes.iter().any(|&nnz| nnz < 100_000) && sizes.iter().any(|&nnz| nnz > 5_000_000));
    assert!(sizes.iter().all(|&nnz| (58_000..10_000_000).contains(&nnz)));
}

#[test]
fn seeds_draw_the_smallest_matrices_too() {
    for seed in 1..=200 {
        for nnz in [1, 2, 10, 100] {
            let spec: Spec = format!("random,nnz={nnz},seed={seed}").parse().unwrap();
            let a = spec.generate::<f64>().unwrap();
            assert_sorted(&a, &spec.to_string());
            let ratio = a.nnz() as f64 / nnz as f64;
            assert!(
                (0.5..=2.0).contains(&ratio),
                "{spec}: {} entries, {}",
                a.nnz(),
                spec.structure()
            );
        }
    }
}

#[test]
fn values_of_seeds_are_drawn_unless_given() {
    let spec = |text: &str| text.parse::<Spec>().unwrap();
    let drawn: BTreeSet<&str> =
        (1..30).map(|seed| spec("random,nnz=100").with_seed(seed).values().name()).collect();
    assert_eq!(drawn, BTreeSet::from(["few", "pattern", "random"]));
    for seed in 1..30 {
        let spec = spec("random,nnz=1k").with_seed(seed).with_values(Values::Random);
        assert_eq!(spec.values(), Values::Random);
        assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
    }
    assert_eq!(
        spec("random,nnz=1k,seed=3,values=random").to_string(),
        "random,nnz=1k,values=random,seed=3"
    );
}

use super::*;
use crate::device::Device;
use crate::formats::{Plan, ResidentMatrix};
use crate::matrix::gallery;
use crate::testing::{Oracle, awkward, chapter, gpu, product, small_gallery, x_vector};
use proptest::prelude::*;

/// Spelling of any plan.
pub(super) fn any_plan() -> BoxedStrategy<String> {
    let values = prop::sample::select(vec!["plain", "packed"]);
    let text =
        (1u32..100, 32u32..400, 1u32..1000, values).prop_map(|(cols, chunk, stripe, values)| {
            format!("tiles(cols:{cols},chunk:{chunk},stripe:{stripe},values:{values})")
        });
    text.boxed()
}

fn generated(spec: &str) -> CsrMatrix<f32> {
    spec.parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// The partition of the picture, with groups of 8.
const SMALL: TilesPlan = TilesPlan { cols: Some(2), chunk: Some(6), stripe: None, packed: false };

/// Numbers of each group, filled up with padding.
fn groups<N: Copy>(filled: &[&[N]], padding: N) -> Vec<N> {
    let group = |numbers: &&[N]| [numbers, &*vec![padding; GROUP - numbers.len()]].concat();
    filled.iter().flat_map(group).collect()
}

#[test]
fn the_chapters_matrix() {
    let packed = Tiles::pack(&SMALL, chapter::matrix::<f32>().view()).unwrap();
    assert_eq!(packed.chunk_rows, [0, 2, 4]);
    assert_eq!(packed.row_ends, [2, 2, 1, 3]);
    assert_eq!((&*packed.tile_ptr, &*packed.chunk_ptr), (&[0, 2, 4][..], &[0, 2, 4][..]));
    assert_eq!(packed.home, [0, 2, 1, 3]);
    assert_eq!(packed.positions, groups(&[&[0, 2], &[1, 3], &[1], &[0, 2]], UNUSED));
    assert_eq!(packed.cols, groups(&[&[0, 1], &[0], &[0, 0], &[1, 1]], 0));
    let SlotValues::Plain(values) = packed.values else { panic!("they are plain") };
    assert_eq!(values, groups(&[&[3.0, 2.0], &[1.0], &[1.0, 4.0], &[1.0, 1.0]], 0.0));
}

#[test]
fn stripes_come_before_column_blocks_and_equal_values_are_kept_once() {
    let mut a = chapter::matrix::<f64>();
    a.values_mut().fill(2.0);
    let plan = TilesPlan { stripe: Some(1), packed: true, ..SMALL };
    let packed = Tiles::pack(&plan, a.view()).unwrap();
    assert_eq!(packed.tile_ptr, [0, 1, 2, 3, 4]);
    assert_eq!(packed.home, [0, 1, 2, 3]);
    assert!(matches!(packed.values, SlotValues::Equal(2.0)));
    assert_eq!(packed.unpack().unwrap(), a);
    let different = Tiles::pack(&plan, chapter::matrix::<f64>().view()).unwrap();
    assert!(matches!(different.values, SlotValues::Plain(_)));
}

#[test]
fn blocks_of_more_than_one_digit_are_sorted() {
    let cols: Vec<u32> = (0..500).map(|i| i * 7919 % 1000 * 100).collect();
    let shape = TilesShape::new(
        &TilesPlan { cols: Some(100), ..SMALL },
        1,
        100_000,
        cols.len(),
        ScalarKind::F32,
    );
    let analysis = |cols: &[u32]| {
        let a = CsrMatrix::try_new(
            1,
            100_000,
            vec![0, cols.len()],
            cols.to_vec(),
            vec![1f32; cols.len()],
        );
        Tiles::pack(&TilesPlan { cols: Some(100), chunk: Some(501), ..SMALL }, a.unwrap().view())
            .unwrap()
    };
    assert!(shape.blocks() > 256);
    let packed = analysis(&cols);
    // One entry per block: slot by slot the entries are in the order of their columns.
    let order: Vec<u16> = packed.positions.iter().copied().filter(|&p| p != UNUSED).collect();
    assert!(order.is_sorted_by_key(|&p| cols[p as usize]) && order.len() == cols.len());
}

#[test]
fn the_estimate_is_right_for_random_columns_and_bounded_for_others() {
    let groups_of = |a: &CsrMatrix<f32>, plan: &TilesPlan| {
        let packed = Tiles::pack(plan, a.view()).unwrap();
        let shape = packed.shape;
        (packed.home.len() as f64, shape.expected_groups() as f64, shape.nnz as f64)
    };
    let random = generated("uniform,rows=20k");
    for (cols, chunk) in
        [(None, None), (Some(100), Some(500)), (Some(1000), Some(2000)), (Some(5), Some(100))]
    {
        let (packed, expected, _) =
            groups_of(&random, &TilesPlan { cols, chunk, ..TilesPlan::default() });
        assert!(
            (packed / expected - 1.0).abs() < 0.03,
            "{cols:?} {chunk:?}: {packed} groups, not {expected}"
        );
    }
    for spec in ["poisson2d,n=100", "banded,rows=5k", "webbase,rows=5k", "dense,n=100"] {
        let (packed, expected, nnz) =
            groups_of(&generated(spec), &TilesPlan { cols: Some(64), chunk: Some(200), ..SMALL });
        assert!(
            packed >= nnz / 8.0 && packed <= 1.6 * expected,
            "{spec}: {packed} groups, not {expected}"
        );
    }
}

#[test]
fn candidates_are_for_gpus_and_gathers_that_miss() {
    let candidates = |spec: &str, on| {
        let analysis = Analysis::of(generated(spec).view());
        Tiles::candidates(&analysis, None, on).iter().map(TilesPlan::to_string).collect::<Vec<_>>()
    };
    assert_eq!(candidates("uniform,rows=300k", Target::Gpu), ["", "(stripe:4194304)"]);
    assert_eq!(candidates("uniform,rows=200k,values=pattern", Target::Gpu), ["(values:packed)"]);
    for (spec, on) in [
        ("uniform,rows=300k", Target::Cpu),
        ("uniform,rows=10k", Target::Gpu),
        ("poisson2d,n=500", Target::Gpu),
    ] {
        assert!(candidates(spec, on).is_empty(), "{spec}");
    }
}

#[test]
fn more_than_there_are_numbers_for_is_refused() {
    let shape = TilesShape::new(
        &TilesPlan { chunk: Some(32), ..SMALL },
        1 << 31,
        1,
        1 << 40,
        ScalarKind::F32,
    );
    assert!(shape.chunk_count() as u64 > i32::MAX as u64);
    let message = pack::check(&SMALL, "chunks", shape.chunk_count() as u64, i32::MAX as u64)
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("plan tiles(cols:2,chunk:6)") && message.contains("larger `chunk`"),
        "{message}"
    );
    assert!(pack::check(&SMALL, "groups", u64::from(u32::MAX), u64::from(u32::MAX)).is_ok());
}

fn words<N: Copy + Into<u64>>(numbers: &[N]) -> Vec<u64> {
    numbers.iter().map(|&number| number.into()).collect()
}

/// All arrays of a matrix by name.
fn arrays<T: Scalar>(a: &HostTiles<T>) -> [(&'static str, Vec<u64>); 8] {
    let values = match &a.values {
        SlotValues::Plain(values) => values.iter().map(|value| value.bits()).collect(),
        SlotValues::Equal(value) => vec![value.bits()],
    };
    [
        ("chunk_rows", words(&a.chunk_rows)),
        ("chunk_ptr", words(&a.chunk_ptr)),
        ("home", words(&a.home)),
        ("positions", words(&a.positions)),
        ("row_ends", words(&a.row_ends)),
        ("tile_ptr", words(&a.tile_ptr)),
        ("cols", words(&a.cols)),
        ("values", values),
    ]
}

/// Packs on both sides under several plans, and compares arrays and products.
fn pack_on_both<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, name: &str) {
    let there = CsrSource::upload(a.view(), gpu).unwrap();
    for text in Tiles::EXAMPLES.iter().chain(&["tiles(cols:7,chunk:64,stripe:300)"]) {
        let context = format!("{name} in {}, {text}", T::KIND);
        let Ok(Plan::Tiles(plan)) = text.parse() else { panic!("{text}") };
        let host = Tiles::pack(&plan, a.view()).unwrap();
        let Some(packed) = device_pack::pack(&plan, &there).unwrap() else {
            let shape = host.shape;
            let cells = shape.chunk_count() * shape.blocks();
            let is_left = shape.blocks() > 4096 || cells > (2 * shape.nnz).max(1 << 20);
            assert!(is_left || shape.nnz == 0, "{context}: left to the host");
            continue;
        };
        let found = arrays(&packed.to_host().unwrap());
        for ((what, expected), (_, found)) in arrays(&host).into_iter().zip(found) {
            let differs = expected.iter().zip(&found).position(|(one, other)| one != other);
            assert!(
                expected.len() == found.len() && differs.is_none(),
                "{context}: {what}, lengths {} and {}, first difference at {differs:?}",
                expected.len(),
                found.len(),
            );
        }
        let resident = ResidentMatrix::Gpu(gpu, Arc::new(packed));
        let x = x_vector(a.ncols());
        let y = product(&Device::Cuda(gpu), &resident, a.nrows(), &x);
        Oracle::of(a.view(), &x).check(&y).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
    }
}

/// Nothing is tested without a GPU.
fn a_gpu_packs_the_same<T: Scalar>() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    awkward::<T>().iter().for_each(|(name, a)| pack_on_both(gpu, a, name));
    for spec in small_gallery() {
        for values in gallery::Values::ALL {
            let spec = spec.clone().with_values(values);
            pack_on_both(gpu, &spec.generate::<T>().unwrap(), &spec.to_string());
        }
    }
    for text in ["lognormal,rows=9000", "rmat,scale=14", "webbase,rows=40000"] {
        let spec: gallery::Spec = text.parse().unwrap_or_else(|_| panic!("{text}"));
        pack_on_both(gpu, &spec.generate::<T>().unwrap(), text);
    }
}

#[test]
fn a_gpu_packs_the_same_in_f32() {
    a_gpu_packs_the_same::<f32>();
}

#[test]
fn a_gpu_packs_the_same_in_f64() {
    a_gpu_packs_the_same::<f64>();
}

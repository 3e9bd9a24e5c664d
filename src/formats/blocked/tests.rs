use super::plan::MAX_KIB;
use super::*;
use crate::device::Device;
use crate::formats::{FormatKind, Plan as AnyPlan, ResidentMatrix};
use crate::matrix::gallery;
use crate::testing::{Oracle, chapter, devices, product, x_vector};
use proptest::prelude::*;

/// Spelling of any plan.
pub(super) fn any_plan() -> BoxedStrategy<String> {
    let x = prop::sample::select(vec!["kib", "hot"]);
    let values = prop::sample::select(vec!["plain", "packed"]);
    let text = (x, 1u32..4, values)
        .prop_map(|(x, kib, values)| format!("blocked({x}:{kib},values:{values})"));
    text.boxed()
}

const WINDOWS: BlockedPlan = BlockedPlan { x: TileColumns::Windows, kib: KIB, packed: false };
const HOT: BlockedPlan = BlockedPlan { x: TileColumns::Hot, kib: KIB, packed: false };

fn generated<T: Scalar>(spec: &str) -> CsrMatrix<T> {
    spec.parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// Rows of the given lengths. Their columns are `step` apart, continuing from the end of the
/// previous row, and sorted if `sorted`.
fn matrix<T: Scalar>(ncols: usize, lengths: &[usize], step: usize, sorted: bool) -> CsrMatrix<T> {
    let (mut row_ptr, mut cols) = (vec![0], Vec::new());
    for &length in lengths {
        let from = cols.len();
        cols.extend((0..length).map(|k| ((from + k) * step % ncols) as u32));
        if sorted {
            cols[from..].sort_unstable();
        }
        row_ptr.push(cols.len());
    }
    let values = x_vector(cols.len());
    CsrMatrix::try_new(lengths.len(), ncols, row_ptr, cols, values).unwrap()
}

/// Numbers at the front, followed by zeros.
fn filled<N: Copy + Default>(len: usize, numbers: &[N]) -> Vec<N> {
    let mut all = numbers.to_vec();
    all.resize(len, N::default());
    all
}

/// Checks unpacking and SpMV, in tiles of `columns` columns, on the CPU and on a GPU if there is
/// one.
fn check<T: Scalar>(plan: &BlockedPlan, columns: u32, a: &CsrMatrix<T>, x: &[T], context: &str) {
    for device in devices() {
        let packed = Box::new(pack::pack_columns(plan, columns, a.view()).unwrap());
        let resident = ResidentMatrix::on(device, packed).unwrap();
        assert!(resident.unpack().unwrap() == *a, "unpacking {context} on {device}");
        let y = product(device, &resident, a.nrows(), x);
        Oracle::of(a.view(), x).check(&y).unwrap_or_else(|wrong| {
            panic!("blocked{plan} with {columns} on {device}, {context}: {wrong}")
        });
    }
}

fn check_all<T: Scalar>(a: &CsrMatrix<T>, context: &str) {
    for plan in [WINDOWS, HOT] {
        for columns in [8, 64, plan.columns(T::KIND)] {
            check(&plan, columns, a, &x_vector(a.ncols()), context);
        }
    }
}

#[test]
fn the_chapters_matrix() {
    let packed = pack::pack(&WINDOWS, chapter::matrix::<f32>().view()).unwrap();
    assert_eq!((&*packed.tiles.tile_ptr, &*packed.tiles.windows), (&[0, 1][..], &[[0, 4]][..]));
    assert_eq!(packed.near.cols, filled(PIECE, &[0, 2, 1, 2, 3, 0, 3]));
    // Four consecutive values of a lane, its other four behind those of all lanes.
    let SlotValues::Plain(values) = &packed.near.values else { panic!("they are plain") };
    assert_eq!(values[..4], [3.0, 1.0, 2.0, 4.0]);
    assert_eq!(values[4..128], [0.0; 124]);
    assert_eq!(values[128..], filled(PIECE - 128, &[1.0, 1.0, 1.0]));
    assert_eq!(packed.near.flags[..32], [&[0b101_0010][..], &[3 << 8; 31]].concat());
    assert_eq!(packed.near.flags[32..], [0; 32], "no ends in the second batch, and none before");
    assert_eq!((&*packed.near.piece_ptr, &*packed.near.targets), (&[0, 3][..], &[0, 2, 3][..]));
    assert_eq!(
        (&*packed.split.rows, &*packed.split.ptr),
        (&[1][..], &[0, 0][..]),
        "a row without entries"
    );
    assert!(packed.order.is_empty() && packed.hot.is_empty() && packed.far.cols.is_empty());
}

#[test]
fn windows_of_8_columns() {
    // The matrix of the picture, with eight columns in place of two.
    let cols = vec![0, 8, 1, 8, 15, 0, 15];
    let values = vec![3.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0];
    let a = CsrMatrix::<f64>::try_new(4, 16, vec![0, 2, 2, 5, 7], cols, values).unwrap();
    let packed = pack::pack_columns(&WINDOWS, 8, a.view()).unwrap();
    assert_eq!(packed.tiles.tile_ptr, [0, 1, 2]);
    assert_eq!(packed.tiles.windows, [[0, 8], [8, 8]]);
    assert_eq!(
        packed.near.cols,
        [filled(PIECE, &[0, 1, 0]), filled(PIECE, &[0, 0, 7, 7])].concat()
    );
    // Two consecutive f64 values.
    let SlotValues::Plain(values) = &packed.near.values else { panic!("they are plain") };
    assert_eq!((&values[..2], &values[64..66]), (&[3.0, 2.0][..], &[1.0, 0.0][..]));
    assert_eq!((&values[512..514], &values[576..578]), (&[1.0, 4.0][..], &[1.0, 1.0][..]));
    assert_eq!((packed.near.flags[0], packed.near.flags[64]), (0b111, 0b1101));
    assert_eq!(packed.near.piece_ptr, [0, 3, 6]);
    assert_eq!(packed.near.targets, [4, 6, 8, 5, 7, 9]);
    assert_eq!(
        (&*packed.split.rows, &*packed.split.ptr),
        (&[0, 1, 2, 3][..], &[0, 2, 2, 4, 6][..])
    );
    assert_eq!(packed.unpack().unwrap(), a);
}

#[test]
fn the_two_hottest_columns() {
    let a = chapter::matrix::<f32>();
    let packed = pack::pack_columns(&HOT, 2, a.view()).unwrap();
    // Columns 0, 2 and 3 have two entries each.
    assert_eq!((&*packed.hot, &*packed.tiles.windows), (&[0, 2][..], &[[0, 2]][..]));
    assert_eq!(packed.near.cols, filled(PIECE, &[0, 1, 1, 0]));
    assert_eq!(packed.far.cols, filled(PIECE, &[1, 3, 3]));
    assert_eq!((packed.near.flags[0], packed.far.flags[0]), (0b1110, 0b110));
    assert_eq!((&*packed.near.targets, &*packed.far.targets), (&[0, 4, 6][..], &[5, 7][..]));
    assert_eq!((&*packed.split.rows, &*packed.split.ptr), (&[1, 2, 3][..], &[0, 0, 2, 4][..]));
    assert_eq!(packed.unpack().unwrap(), a);
}

#[test]
fn a_cell_goes_on_in_the_next_piece() {
    let a = matrix::<f32>(8, &[PIECE - 1, 2, PIECE], 1, true);
    let packed = pack::pack(&WINDOWS, a.view()).unwrap();
    // 511 entries and one of the next row; the other and 511 of the last; its last.
    assert_eq!(
        (&*packed.near.piece_ptr, &*packed.near.targets),
        (&[0, 2, 4, 5][..], &[0, 3, 4, 5, 6][..])
    );
    assert_eq!((&*packed.split.rows, &*packed.split.ptr), (&[1, 2][..], &[0, 2, 4][..]));
    assert_eq!(
        packed.near.flags[63], 0b1100_0000,
        "an end each at 510 and 511, none before in the batch"
    );
    assert_eq!(packed.near.flags[64], 1);
    assert_eq!(packed.unpack().unwrap(), a);
}

#[test]
fn rows_around_lanes_batches_and_pieces() {
    let lengths = [0, 1, 7, 8, 9, 255, 256, 257, 511, 512, 513, 0, 0, 1023, 1024, 1025, 2, 0];
    for sorted in [true, false] {
        for step in [1, 7, 101] {
            let context = format!("step {step}, sorted: {sorted}");
            check_all(&matrix::<f32>(1000, &lengths, step, sorted), &context);
            check_all(&matrix::<f64>(1000, &lengths, step, sorted), &context);
        }
    }
    for length in [0, 1, 255, 256, 257, 511, 512, 513] {
        check_all(&matrix::<f64>(700, &[length], 3, false), &format!("one row of {length}"));
        check_all(&matrix::<f32>(70, &[length; 9], 3, true), &format!("rows of {length}"));
    }
}

#[test]
fn a_huge_row_and_many_panels() {
    let mut lengths = [1; 400];
    lengths[7] = 200_000;
    check_all(&matrix::<f32>(5000, &lengths, 11, true), "a huge row");
    // Rows along a diagonal: a panel every few hundred rows.
    let cols: Vec<u32> = (0..20_000).flat_map(|row| [row, row + 40, row + 90]).collect();
    let values = x_vector(cols.len());
    let a = CsrMatrix::<f64>::try_new(
        20_000,
        20_090,
        (0..=20_000).map(|row| 3 * row).collect(),
        cols,
        values,
    );
    let a = a.unwrap();
    assert!(pack::pack_columns(&WINDOWS, 64, a.view()).unwrap().tiles.len() > 20);
    check_all(&a, "three diagonals");
}

#[test]
fn elements_without_entries_reach_no_sum() {
    // The first column of every window, and the first that is not hot: only padding refers to them.
    let cols: Vec<u32> = (0..900).map(|k| k * 7 % 600 / 6 * 6 + 1).collect();
    let row_ptr = (0..=30).map(|row| 30 * row).collect();
    let a = CsrMatrix::<f32>::try_new(30, 601, row_ptr, cols, x_vector(900)).unwrap();
    for special in [f32::INFINITY, f32::NAN] {
        let mut x = x_vector::<f32>(601);
        (0..601).filter(|col| col % 6 != 1).for_each(|col| x[col] = special);
        for plan in [WINDOWS, HOT] {
            check(&plan, 48, &a, &x, "special values");
        }
    }
}

#[test]
fn equal_values_are_kept_once() {
    let mut a = matrix::<f64>(300, &[40, 0, 700, 3], 7, true);
    a.values_mut().fill(-0.0);
    for plan in [WINDOWS, HOT] {
        let plan = BlockedPlan { packed: true, ..plan };
        let packed = pack::pack_columns(&plan, 64, a.view()).unwrap();
        let zero = (-0.0f64).bits();
        assert!(matches!(packed.near.values, SlotValues::Equal(value) if value.bits() == zero));
        check(&plan, 64, &a, &x_vector(300), "equal values");
        a.values_mut()[3] = 0.0;
        assert!(matches!(
            pack::pack_columns(&plan, 64, a.view()).unwrap().near.values,
            SlotValues::Plain(_)
        ));
        a.values_mut()[3] = -0.0;
    }
}

#[test]
fn packing_does_not_depend_on_the_number_of_threads() {
    let a = generated::<f32>("rmat,scale=13");
    for plan in [WINDOWS, HOT] {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            format!("{:?}", pool.install(|| pack::pack_columns(&plan, 512, a.view()).unwrap()))
        };
        assert!(on(1) == on(3), "blocked{plan}");
    }
}

#[test]
fn numbers_stand_by_16_bytes_of_every_lane() {
    assert_eq!([0, 3, 4, 7, 8, 12, 255].map(|i| place(i, 4)), [0, 3, 128, 131, 4, 132, 255]);
    assert_eq!([0, 1, 2, 8, 255].map(|i| place(i, 8)), [0, 1, 64, 2, 255]);
    assert!((0..BATCH).all(|i| place(i, 2) == i));
}

/// A GPU multiplies windows that do not fit its shared memory with `x` in global memory.
#[test]
fn windows_beyond_shared_memory() {
    let a = matrix::<f32>(1 << 16, &[900; 700], 4099, true);
    let plan = BlockedPlan { kib: MAX_KIB, ..WINDOWS };
    assert_eq!(plan.columns(ScalarKind::F32), 1 << 16);
    check(&plan, 1 << 16, &a, &x_vector(1 << 16), "256 KiB of x");
    let equal = BlockedPlan { packed: true, ..plan };
    let mut a = a;
    a.values_mut().fill(0.5);
    check(&equal, 1 << 16, &a, &x_vector(1 << 16), "256 KiB of x, equal values");
}

#[test]
fn stated_work_is_close_to_the_packed_matrix() {
    for spec in [
        "lognormal,rows=150k",
        "lp,rows=400",
        "rmat,scale=17",
        "uniform,rows=100k",
        "banded,rows=5k",
    ] {
        let a = generated::<f32>(spec);
        let analysis = Analysis::of(a.view());
        for plan in [WINDOWS, HOT, BlockedPlan { kib: 16, ..WINDOWS }] {
            let estimated = Blocked::work(&plan, &analysis, ScalarKind::F32);
            let packed = pack::pack(&plan, a.view()).unwrap();
            let segments = packed.near.targets.len() + packed.far.targets.len();
            let (bytes, segments) = (
                estimated.matrix_bytes as f64 / packed.matrix_bytes() as f64,
                estimated.starts as f64 / segments as f64,
            );
            let close = if Blocking::of(&analysis).is_some() && plan.kib == KIB {
                0.85..1.25
            } else {
                0.5..4.0
            };
            assert!(close.contains(&bytes), "{spec}, blocked{plan}: {bytes} of the bytes");
            assert!(
                (0.5..4.0).contains(&segments),
                "{spec}, blocked{plan}: {segments} of the segments"
            );
        }
    }
}

#[test]
fn candidates_are_for_gpus_and_what_tiles_help() {
    let candidates = |spec: &str, on| {
        let analysis = Analysis::of(generated::<f32>(spec).view());
        Blocked::candidates(&analysis, None, on)
            .iter()
            .map(BlockedPlan::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(candidates("lognormal,rows=200k", Target::Gpu), ["(kib:192)", "(kib:48)"]);
    assert_eq!(candidates("rmat,scale=19", Target::Gpu), ["(hot:192)"]);
    assert_eq!(
        candidates("lognormal,rows=200k,values=pattern", Target::Gpu),
        ["(kib:192,values:packed)", "(kib:48,values:packed)"]
    );
    for (spec, on) in [
        ("lognormal,rows=200k", Target::Cpu),
        ("lognormal,rows=20k", Target::Gpu),
        ("uniform,rows=500k", Target::Gpu),
        ("poisson2d,n=500", Target::Gpu),
    ] {
        assert!(candidates(spec, on).is_empty(), "{spec}");
    }
}

#[test]
fn more_than_there_are_numbers_for_is_refused() {
    assert_eq!(pack::check(&WINDOWS, "segments", u32::MAX.into()).unwrap(), u32::MAX);
    let message = pack::check(&WINDOWS, "segments", 1 << 32).unwrap_err().to_string();
    assert!(
        message.starts_with("plan blocked(kib:192)") && message.contains("more KiB"),
        "{message}"
    );
}

#[test]
fn the_default_plan_is_spelled() {
    assert_eq!("blocked".parse::<AnyPlan>().unwrap().to_string(), "blocked(kib:192)");
    assert_eq!(FormatKind::Blocked.name(), "blocked");
    assert!(devices().contains(&Device::Cpu));
}

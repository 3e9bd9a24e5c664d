//! Tests of the encodings of slices.

use super::*;

fn shape(kind: Kind, step_columns: usize, full: usize, width: usize) -> SliceShape {
    SliceShape { kind, step_columns, full, width }
}

fn choose(rows: &[Vec<u32>], first_row: Option<usize>) -> (Encoded, Vec<Slot>) {
    choose_beside_long(rows, first_row, 0)
}

/// As `choose`, with long rows in some lanes, in a matrix of 1000 columns.
fn choose_beside_long(
    rows: &[Vec<u32>],
    first_row: Option<usize>,
    long: u32,
) -> (Encoded, Vec<Slot>) {
    let mut columns: LaneColumns<'_> = [&[]; LANES];
    columns.iter_mut().zip(rows).for_each(|(lane, row)| *lane = row);
    let mut chooser = Chooser::default();
    let encoded = chooser.choose(&LaneRows { columns, first_row, long, ncols: 1000 });
    let slots = chooser.slots().to_vec();
    (encoded, if encoded.shape.kind == Kind::Diagonal { slots } else { Vec::new() })
}

fn full(row: impl Fn(u32) -> Vec<u32>) -> Vec<Vec<u32>> {
    (0..LANES as u32).map(row).collect()
}

#[test]
fn shapes_survive_their_bits() {
    for kind in Kind::ALL {
        for (step_columns, full, width) in
            [(1, 0, 0), (2, 5, 9), (3, MAX_WIDTH as usize, MAX_WIDTH as usize)]
        {
            let shape = shape(kind, step_columns, full, width);
            assert_eq!(SliceShape::from_bits(shape.to_bits()), shape);
        }
    }
    let shape = shape(Kind::Relative16, 3, 1, 2);
    assert_eq!(shape.to_bits(), 2 | 2 << 2 | 1 << 4 | 2 << 18);
}

#[test]
fn diagonals_close_to_one_another_are_collected_like_others() {
    let wide = |longest: u32, gap: u32| {
        let row =
            |row: u32| (row..row + longest).filter(|col| col * col % (7 + row) != gap).collect();
        full(row)
    };
    for rows in
        [wide(500, 3), wide(300, 0), wide(120, 1), vec![(5..400).collect(), vec![], vec![30]]]
    {
        let mut expected = std::collections::BTreeMap::<i32, u32>::new();
        for (lane, row) in rows.iter().enumerate() {
            row.iter().for_each(|&col| {
                *expected.entry(col as i32 - 40 - lane as i32).or_default() |= 1 << lane
            });
        }
        let mut columns: LaneColumns<'_> = [&[]; LANES];
        columns.iter_mut().zip(&rows).for_each(|(lane, row)| *lane = row);
        let longest = rows.iter().map(Vec::len).max().unwrap();
        let mut chooser = Chooser::default();
        assert!(chooser.diagonals(&columns, 40, longest, expected.len()));
        assert!(chooser.slots().iter().map(|slot| (slot.delta, slot.mask)).eq(expected.clone()));
        assert!(!chooser.diagonals(&columns, 40, longest, expected.len() - 1));
    }
}

#[test]
fn a_stencil_is_diagonal_where_its_rows_are_in_their_order() {
    let rows = full(|row| vec![row + 99, row + 100, row + 101]);
    let (encoded, slots) = choose(&rows, Some(100));
    assert_eq!(encoded.shape, shape(Kind::Diagonal, 1, 3, 3));
    assert_eq!((encoded.stored, encoded.index_bytes), (96, 16));
    assert_eq!(slots, [-1, 0, 1].map(|delta| Slot { delta, mask: ALL }));
    let (sorted, _) = choose(&rows, None);
    assert_eq!(sorted.shape, shape(Kind::Relative8, 3, 1, 1));
    assert_eq!((sorted.base, sorted.index_bytes), (99, 32));
}

#[test]
fn slots_are_merged_in_order_with_the_lanes_that_have_them() {
    let rows = full(|row| match row {
        3 => vec![3, 9],
        4 => vec![],
        _ => vec![row, row + 40],
    });
    let (encoded, slots) = choose(&rows, Some(0));
    let missing = ALL & !(1 << 4);
    let expected = [(0, missing), (6, 1 << 3), (40, missing & !(1 << 3))];
    assert_eq!(slots, expected.map(|(delta, mask)| Slot { delta, mask }));
    assert_eq!((encoded.shape.full, encoded.shape.width, encoded.stored), (0, 3, 62));
    assert_eq!(encoded.index_bytes, 32, "deltas and masks, padded");
}

#[test]
fn slots_that_every_lane_has_need_no_mask() {
    // Five slots that all lanes have, one that one lane lacks: 32 bytes and 2 · 16; as indices
    // 6 · 32 and a mask.
    let rows = full(|row| {
        [0, 5, 9, 13, 20]
            .map(|d| row + d)
            .into_iter()
            .chain((row > 0).then_some(row + 31))
            .collect()
    });
    let (encoded, slots) = choose(&rows, Some(0));
    assert_eq!((encoded.shape.full, encoded.shape.width, encoded.index_bytes), (5, 6, 64));
    assert_eq!(slots[5], Slot { delta: 31, mask: !1 });
    // The same number of bytes either way: the lower kind.
    let rows = full(|row| if row < 16 { vec![row] } else { vec![] });
    let (encoded, _) = choose(&rows, Some(0));
    assert_eq!((encoded.shape.kind, encoded.index_bytes), (Kind::Diagonal, 32));
    assert_eq!(choose(&rows, None).0.index_bytes, 32);
    // Fewer bytes as indices.
    let rows = full(|row| if row < 8 { vec![row, row * row + 9] } else { vec![] });
    assert_eq!(choose(&rows, Some(0)).0.shape.kind, Kind::Relative8);
}

#[test]
fn too_many_diagonals_unsorted_or_repeated_columns_are_not_diagonal() {
    for rows in [
        full(|row| vec![row * row % 31]),
        full(|row| vec![row + 1, row]),
        full(|row| vec![row, row]),
    ] {
        let (encoded, _) = choose(&rows, Some(0));
        assert_eq!(encoded.shape.kind, Kind::Relative8);
        assert_eq!(encoded.index_bytes as usize, encoded.stored as usize);
    }
}

#[test]
fn diagonals_further_away_than_31_bits_are_none() {
    let rows = full(|row| vec![row, u32::MAX - 40 + row / 4]);
    let (encoded, _) = choose(&rows, Some(0));
    assert_eq!((encoded.shape.kind, encoded.base), (Kind::Relative32, 0));
    let near = full(|row| vec![(1 << 31) - 1 + row]);
    assert_eq!(choose(&near, Some(0)).0.shape.kind, Kind::Diagonal);
    let far = full(|row| vec![(1 << 31) + row]);
    assert_eq!(choose(&far, Some(0)).0.shape.kind, Kind::Relative8);
}

#[test]
fn the_span_decides_on_the_bits() {
    for (span, kind, base) in [
        (255, Kind::Relative8, 7),
        (256, Kind::Relative16, 7),
        (65_535, Kind::Relative16, 7),
        (65_536, Kind::Relative32, 0),
    ] {
        let (encoded, _) = choose(&full(|row| vec![7 + (row % 2) * span]), None);
        assert_eq!((encoded.shape.kind, encoded.base), (kind, base), "span {span}");
    }
    // The largest index is that of the first column of the last step.
    let (encoded, _) = choose(&full(|_| vec![0, 1, 2, 255, 256, 257]), None);
    assert_eq!((encoded.shape.kind, encoded.shape.step_columns), (Kind::Relative8, 3));
}

#[test]
fn steps_have_as_many_columns_in_all_rows() {
    let step_columns = |rows: &[Vec<u32>]| choose(rows, None).0.shape.step_columns;
    let node = |first: u32, len: u32| (first..first + len).collect::<Vec<_>>();
    assert_eq!(step_columns(&full(|row| node(row, 6))), 3);
    assert_eq!(step_columns(&full(|row| node(row, 4))), 2);
    assert_eq!(step_columns(&full(|row| node(row, if row == 5 { 2 } else { 6 }))), 2);
    assert_eq!(step_columns(&full(|row| node(row, if row == 5 { 0 } else { 6 }))), 3);
    assert_eq!(step_columns(&full(|row| node(row, 5))), 1);
    assert_eq!(step_columns(&full(|_| vec![4, 5, 6, 2, 3, 4])), 3, "steps need no order");
    assert_eq!(step_columns(&full(|_| vec![4, 5, 7])), 1);
}

#[test]
fn rows_of_different_length_need_masks() {
    let rows = full(|row| (0..3 + row % 4).map(|k| k * 5 % 17).collect());
    let (encoded, _) = choose(&rows, None);
    assert_eq!((encoded.shape.full, encoded.shape.width, encoded.stored), (3, 6, 144));
    assert_eq!(encoded.index_bytes, 16 + 144);
    // A lane without a row has no entries, so that no step is full.
    let (encoded, _) = choose(&rows[..31], None);
    assert_eq!((encoded.shape.full, encoded.shape.width), (0, 6));
}

#[test]
fn nothing_takes_nothing() {
    let (encoded, _) = choose(&[], Some(0));
    assert_eq!(encoded.shape, shape(Kind::Diagonal, 1, 0, 0));
    assert_eq!((encoded.base, encoded.stored, encoded.index_bytes), (0, 0, 0));
    assert_eq!(choose(&[], None).0.shape.kind, Kind::Relative8);
}

#[test]
fn the_lane_of_a_long_row_is_filled_where_all_others_have_a_slot() {
    // Lane 5 has a long row; the last lanes lack the third slot.
    let row = |row: u32| match row {
        5 => vec![],
        29.. => vec![row + 99, row + 100],
        _ => vec![row + 99, row + 100, row + 109],
    };
    let (encoded, slots) = choose_beside_long(&full(row), Some(100), 1 << 5);
    assert_eq!(encoded.shape, shape(Kind::Diagonal, 1, 2, 3));
    assert_eq!((encoded.stored, encoded.filled), (2 * 32 + 28, 2));
    assert_eq!(
        slots.iter().map(|slot| slot.mask).collect::<Vec<_>>(),
        [ALL, ALL, ALL >> 3 & !(1 << 5)]
    );
    let (sorted, _) = choose_beside_long(&full(row), None, 1 << 5);
    assert_eq!(sorted.shape, shape(Kind::Relative8, 1, 2, 3));
    assert_eq!((sorted.stored, sorted.filled), (2 * 32 + 28, 2));
    assert_eq!(sorted.index_bytes as usize, 16 + padded(2 * 32 + 28));
    // Without a long row the lane has no entries, and no step is full.
    assert_eq!(choose(&full(row), None).0.shape, shape(Kind::Relative8, 1, 0, 3));
}

#[test]
fn slots_beside_the_matrix_and_many_long_rows_are_not_filled() {
    // Diagonals -1, 2, 5 and 8 from the columns of `first` on, but for the lanes of `long`.
    let stencil = |first: u32, long: u32| {
        let row = |row: u32| [-1, 2, 5, 8].map(|delta| (first + row).wrapping_add_signed(delta));
        full(|lane| if long >> lane & 1 != 0 { vec![] } else { row(lane).to_vec() })
    };
    let masks = |first: u32, long: u32| {
        let (encoded, slots) =
            choose_beside_long(&stencil(first, long), Some(first as usize), long);
        assert_eq!(encoded.shape.kind, Kind::Diagonal);
        assert_eq!(
            encoded.filled as usize,
            slots.iter().filter(|slot| slot.mask == ALL).count() * long.count_ones() as usize
        );
        slots.iter().map(|slot| slot.mask).collect::<Vec<_>>()
    };
    let (first, last) = (ALL - 1, ALL >> 1);
    assert_eq!(masks(0, 1), [first, ALL, ALL, ALL], "column -1");
    assert_eq!(masks(960, 1 << 31), [ALL; 4], "column 999 of 1000");
    assert_eq!(masks(961, 1 << 31), [ALL, ALL, ALL, last], "column 1000");
    for (long, filled) in [(0xFF, 8 * 4), (0x1FF, 0)] {
        let (encoded, _) = choose_beside_long(&stencil(100, long), None, long);
        assert_eq!(encoded.filled, filled, "{long:x}");
        assert_eq!(encoded.stored, 4 * (32 - long.count_ones()) + filled);
    }
}

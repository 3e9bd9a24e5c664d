//! Properties: equality with a naive parser, round trips, and no panic on any bytes.

use super::super::*;
use super::parse_in;
use crate::matrix::Triplets;
use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// A line of a coordinate file, counted from 0, and the noise around it.
type Line = (u8, u8, f64, u8);

const SIZE: u8 = 9;

/// Text with comments, blank lines and any line end, chosen by `noise`.
fn text_of(symmetry: &str, lines: &[Line]) -> String {
    let mut text = format!(
        "%%MatrixMarket matrix coordinate real {symmetry}\n{SIZE} {SIZE} {}\n",
        lines.len()
    );
    for &(row, col, value, noise) in lines {
        let before = ["", "\n", "% 1 1 1\n", " \t\r\n"][noise as usize % 4];
        let blank = [" ", "\t", "   "][noise as usize % 3];
        let end = ["\n", "\r\n", " \n", "\t\r\n"][noise as usize / 4 % 4];
        let number = match noise % 5 {
            0 => format!("{value:e}").replace('e', "D"),
            1 => format!("{value:.20e}"),
            2 => format!("{value}"),
            _ => format!("{value:?}"),
        };
        text += &format!("{before}{}{blank}{}{blank}{number}{end}", row + 1, col + 1);
    }
    text
}

/// Expected result of [`parse`], computed with only the standard library.
fn naive(text: &str) -> BTreeMap<(u32, u32), f64> {
    let (symmetric, skew) = (text.contains("real symmetric"), text.contains("real skew"));
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('%'));
    let mut sums = BTreeMap::new();
    let mut add = |row, col, value| *sums.entry((row, col)).or_insert(-0.0) += value;
    for line in lines.skip(1) {
        let words: Vec<_> = line.split_whitespace().collect();
        let [row, col] = [words[0], words[1]].map(|word| word.parse::<u32>().unwrap() - 1);
        let value: f64 = words[2].replace('D', "e").parse().unwrap();
        add(row, col, value);
        if row != col && (symmetric || skew) {
            add(col, row, if skew { -value } else { value });
        }
    }
    sums
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>().prop_filter("numbers", |v| v.is_finite()),
        -9.0..9.0,
        (-5i32..5).prop_map(f64::from)
    ]
}

fn same_bits<T: Scalar>(a: &CsrMatrix<T>, b: &CsrMatrix<T>) -> bool {
    let bits = |m: &CsrMatrix<T>| m.values().iter().map(|v| v.bits()).collect::<Vec<_>>();
    a.row_ptr() == b.row_ptr()
        && a.col_idx() == b.col_idx()
        && bits(a) == bits(b)
        && a.ncols() == b.ncols()
}

fn round_trip<T: Scalar>(entries: &[(u32, u32, T)], name: &str) -> Result<(), TestCaseError> {
    let mut t = Triplets::new(70_000, 300).unwrap();
    for &(row, col, value) in entries {
        t.push(row as usize, col as usize, value).unwrap();
    }
    let a = t.to_csr();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    write(&path, a.view()).unwrap();
    prop_assert!(same_bits(&read::<T>(&path).unwrap(), &a));
    Ok(())
}

/// Names of files that can be written.
const ENDS: &[&str] = if cfg!(feature = "zstd") {
    &["a.mtx", "a.mtx.gz", "a.mtx.zst"]
} else {
    &["a.mtx", "a.mtx.gz"]
};

proptest! {
    #[test]
    fn equal_to_a_naive_parser(
        symmetry in prop::sample::select(vec!["general", "symmetric", "skew-symmetric"]),
        lines in prop::collection::vec((0..SIZE, 0..SIZE, number(), any::<u8>()), 0..60),
        chunk_bytes in 1usize..200,
    ) {
        let off_diagonal = |line: &Line| symmetry != "skew-symmetric" || line.0 != line.1;
        let lines: Vec<Line> = lines.into_iter().filter(off_diagonal).collect();
        let text = text_of(symmetry, &lines);
        let a = parse_in::<f64>(chunk_bytes, text.as_bytes()).unwrap();
        let rows = (0..a.nrows()).flat_map(|row| a.view().row_range(row).map(move |k| (row, k)));
        let found: Vec<_> =
            rows.map(|(row, k)| ((row as u32, a.col_idx()[k]), a.values()[k].to_bits())).collect();
        let expected: Vec<_> =
            naive(&text).into_iter().map(|(place, v)| (place, v.to_bits())).collect();
        prop_assert_eq!(found, expected, "{}", text);
    }

    #[test]
    fn written_files_are_read_back(
        doubles in prop::collection::vec((0u32..70_000, 0u32..300, number()), 0..50),
        singles in prop::collection::vec((0u32..70_000, 0u32..300, any::<f32>()), 0..50),
        end in prop::sample::select(ENDS),
    ) {
        round_trip(&doubles, end)?;
        // Equal NaNs do not have equal bits.
        let singles: Vec<_> = singles.into_iter().filter(|entry| !entry.2.is_nan()).collect();
        round_trip(&singles, end)?;
    }

    #[test]
    fn no_bytes_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        chunk_bytes in 1usize..50,
    ) {
        let _ = parse_in::<f64>(chunk_bytes, &bytes);
        let head = b"%%MatrixMarket matrix array real general\n3 3\n";
        let _ = parse_in::<f32>(chunk_bytes, &[head, &bytes[..]].concat());
    }
}

/// The loop of the fuzz target, bounded: valid files, changed at random, never panic.
#[test]
fn mutations_do_not_panic() {
    const ROUNDS: usize = 20_000;
    const ALPHABET: &[u8] = b"0123456789 \n\r\t%+-.eEdDnaif\xff\0";
    let seeds: [&[u8]; 4] = [
        b"%%MatrixMarket matrix coordinate real general\n% c\n3 3 3\n1 1 1.5e3\n2 3 -2\n3 1 nan\n",
        b"%%MatrixMarket matrix coordinate integer symmetric\n3 3 2\n1 1 1\n\
          3 2 123456789012345678\n",
        b"%%MatrixMarket matrix coordinate pattern general\r\n300 300 2\r\n100 1\r\n7 20\r\n",
        b"%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3",
    ];
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let mut text = seeds[round % seeds.len()].to_vec();
        for _ in 0..1 + below(4) {
            let at = below(text.len().max(1)).min(text.len());
            match below(5) {
                0 => text.truncate(at),
                1 => text.insert(at, ALPHABET[below(ALPHABET.len())]),
                2 if at < text.len() => text[at] ^= 1 << below(8),
                3 if at < text.len() => drop(text.remove(at)),
                _ => text.extend_from_within(at..),
            }
        }
        accepted += usize::from(parse_in::<f64>(1 + below(40), &text).is_ok());
    }
    assert!(
        accepted > ROUNDS / 100 && accepted < ROUNDS / 2,
        "{accepted} of {ROUNDS} were accepted"
    );
}

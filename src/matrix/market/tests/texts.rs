//! Small texts: accepted spellings and error messages.

use super::super::*;
use super::{parse_in, refusal};

/// Rows of a small matrix as text; `.` for places that are not stored.
fn dense(text: &str) -> String {
    let a = parse_in::<f64>(5, text.as_bytes()).unwrap();
    let rows = (0..a.nrows()).map(|row| {
        let (cols, values) = a.view().row(row);
        let cell = |col| {
            cols.iter()
                .position(|&c| c as usize == col)
                .map_or(".".to_owned(), |k| values[k].to_string())
        };
        (0..a.ncols()).map(cell).collect::<Vec<_>>().join(" ")
    });
    rows.collect::<Vec<_>>().join(" | ")
}

fn with_banner(banner: &str, rest: &str) -> String {
    format!("%%MatrixMarket matrix {banner}\n{rest}")
}

#[test]
fn every_kind_of_matrix() {
    let coordinate = "2 2 2\n1 1 4\n2 1 -5\n";
    assert_eq!(dense(&with_banner("coordinate real general", coordinate)), "4 . | -5 .");
    assert_eq!(dense(&with_banner("coordinate integer symmetric", coordinate)), "4 -5 | -5 .");
    assert_eq!(dense(&with_banner("coordinate real symmetric", "2 2 1\n1 2 3\n")), ". 3 | 3 .");
    assert_eq!(
        dense(&with_banner("coordinate real skew-symmetric", "2 2 1\n2 1 3\n")),
        ". -3 | 3 ."
    );
    assert_eq!(
        dense(&with_banner("coordinate pattern general", "2 3 2\n2 3\n1 1\n")),
        "1 . . | . . 1"
    );
    assert_eq!(
        dense(&with_banner("coordinate pattern symmetric", "2 2 2\n1 1\n2 1\n")),
        "1 1 | 1 ."
    );
    assert_eq!(
        dense(&with_banner("array real general", "2 3\n1\n2\n0\n4\n5\n6\n")),
        "1 . 5 | 2 4 6"
    );
    assert_eq!(dense(&with_banner("array integer symmetric", "2 2\n1\n2\n3\n")), "1 2 | 2 3");
    assert_eq!(
        dense(&with_banner("array real skew-symmetric", "3 3\n1\n2\n3\n")),
        ". -1 -2 | 1 . -3 | 2 3 ."
    );
}

#[test]
fn matrices_without_entries() {
    for (sizes, shape) in
        [("0 0 0", (0, 0)), ("0 3 0", (0, 3)), ("3 0 0", (3, 0)), ("2 2 0", (2, 2))]
    {
        let a = parse::<f32>(with_banner("coordinate real general", sizes).as_bytes()).unwrap();
        assert_eq!((a.nrows(), a.ncols(), a.nnz()), (shape.0, shape.1, 0));
    }
    for banner in ["array real general", "array real symmetric", "array real skew-symmetric"] {
        assert_eq!(parse::<f32>(with_banner(banner, "0 0\n").as_bytes()).unwrap().nrows(), 0);
    }
    assert_eq!(dense(&with_banner("array real skew-symmetric", "1 1\n")), ".");
}

#[test]
fn comments_blanks_and_spellings() {
    let text = "%%mAtRiXmArKeT\tMATRIX  Coordinate REAL General \r\n% \u{fffd}\n\n  % indented\r\n \
                2\t2 6 \r\n\r\n\
                1 1 +1.5D+01\r\n%\n\t2  2   2.5d0 \n2 1 .5\n\n1 2 1.\n+1 002 1e0\n\
                000000000001 2 -3E-1";
    assert_eq!(dense(text), "15 1.7 | 0.5 2.5");
    let a = parse_in::<f64>(
        9,
        with_banner("coordinate real general", "1 4 4\n1 1 NaN\n1 2 -INF\n1 3 Infinity\n1 4 0\n")
            .as_bytes(),
    )
    .unwrap();
    assert!(a.values()[0].is_nan());
    let latin = b"%%MatrixMarket matrix coordinate pattern general\n% Universit\xe9\n1 1 1\n1 1";
    assert_eq!(parse::<f32>(latin).unwrap().values(), [1.0]);
    let latin = b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 \xe9";
    assert_eq!(refusal::<f32>(latin), (Some(3), "`\\xe9` is not a number".into()));
    assert_eq!(a.values()[1..], [f64::NEG_INFINITY, f64::INFINITY, 0.0]);
}

#[test]
fn duplicates_are_summed_in_order_and_zeros_kept() {
    let body = "2 2 5\n2 2 1\n2 1 0\n2 2 1e16\n2 2 -1e16\n1 1 0\n";
    assert_eq!(dense(&with_banner("coordinate real general", body)), "0 . | 0 0");
}

#[test]
fn numbers_are_rounded_once() {
    // As an f64 this is halfway between two f32s, and would be rounded to even, which is down.
    let text = with_banner("coordinate real general", "1 1 1\n1 1 1.00000005960464477540\n");
    assert_eq!(parse::<f32>(text.as_bytes()).unwrap().values(), [1.0 + f32::EPSILON]);
    let text = with_banner(
        "coordinate integer general",
        "1 4 4\n1 1 9007199254740993\n1 2 -123456789012345678901234567890\n1 3 +7\n1 4 \
         -0000000000000000012\n",
    );
    let values = [9007199254740992.0, -1.2345678901234568e29, 7.0, -12.0];
    assert_eq!(parse::<f64>(text.as_bytes()).unwrap().values(), values);
    let text = with_banner("array integer general", "2 1\n123456789012345\n-12345678\n");
    assert_eq!(parse::<f64>(text.as_bytes()).unwrap().values(), [123456789012345.0, -12345678.0]);
}

#[test]
fn bad_banners_and_sizes() {
    let cases = [
        ("", None, "there is nothing in it"),
        (
            "%%MatrixMarket matrix coordinate real general",
            Some(1),
            "the size line `rows columns entries` is missing",
        ),
        (
            "%%MatrixMarket matrix array real general\n% no size\n",
            Some(3),
            "the size line `rows columns` is missing",
        ),
        ("1 1 1\n", Some(1), "`1 1 1` is no Matrix Market banner; expected"),
        ("\n\n", Some(1), "the banner does not name the format"),
        ("\0\u{1}\n", Some(1), "`\\x00\\x01` is no Matrix Market banner"),
        ("%%MatrixMarket vector", Some(1), "`vector` is not a known object"),
        ("%%MatrixMarket matrix coordinat real general\n", Some(1), "did you mean `coordinate`?"),
        ("%%MatrixMarket matrix coordinate real\n", Some(1), "does not name the symmetry"),
        ("%%MatrixMarket matrix coordinate real general 7\n", Some(1), "unexpected `7`"),
        (
            "%%MatrixMarket matrix coordinate complex general\n1 1 0\n",
            Some(1),
            "store the real and the imaginary",
        ),
        ("%%MatrixMarket matrix coordinate real hermitian\n1 1 0\n", Some(1), "write `symmetric`"),
        (
            "%%MatrixMarket matrix coordinate pattern skew-symmetric\n",
            Some(1),
            "pattern matrix has no signs",
        ),
        ("%%MatrixMarket matrix array pattern general\n", Some(1), "pattern matrix has no values"),
    ];
    for (text, line, message) in cases {
        let refusal = refusal::<f64>(text.as_bytes());
        assert!(refusal.0 == line && refusal.1.contains(message), "{text:?}: {refusal:?}");
    }
    let sizes = [
        ("coordinate real general", "-1 2 3", "`-1` is not a number of rows"),
        ("coordinate real general", "1 2.0 3", "`2.0` is not a number of columns"),
        ("coordinate real general", "1 2 x", "`x` is not a number of entries"),
        ("coordinate real general", "1 2", "has no number of entries"),
        ("array real general", "1 2 3", "unexpected `3`"),
        (
            "coordinate real general",
            "4294967295 1 0",
            "`4294967295` rows are too many: at most 4294967294",
        ),
        ("coordinate real general", "1 99999999999999999999999 0", "columns are too many"),
        ("coordinate real general", "1 1 18446744073709551616", "551616` entries are too many"),
        ("coordinate real symmetric", "2 3 0", "must be square, not 2 x 3"),
        ("array real skew-symmetric", "3 2", "must be square, not 3 x 2"),
    ];
    for (banner, size, message) in sizes {
        let refusal = refusal::<f64>(with_banner(banner, &format!("%\n{size}\n")).as_bytes());
        assert!(refusal.0 == Some(3) && refusal.1.contains(message), "{size:?}: {refusal:?}");
    }
}

#[test]
fn bad_entries_are_named_with_their_line() {
    let cases = [
        ("real", "0 1 1", "the row index is 0, but indices count from 1 (to 2)"),
        ("real", "1 0 1", "the column index is 0, but indices count from 1 (to 3)"),
        ("real", "3 1 1", "row 3 is out of range: there are only 2"),
        ("real", "1 4 1", "column 4 is out of range: there are only 3"),
        ("real", "1 99999999999999999999 1", "column 99999999999999999999 is out of range"),
        ("real", "-1 1 1", "`-1` is not a row index"),
        ("real", "1", "the column index is missing"),
        ("real", "1 2", "the value is missing after `1 2`"),
        ("real", "1 2 % 3", "`%` is not a number"),
        ("real", "1 2 3 4", "unexpected `4` after the entry"),
        ("real", "1 2 3x", "`3x` is not a number"),
        ("real", "1 2 0x10", "`0x10` is not a number"),
        ("real", "1 2 1e400", "`1e400` is too large for f64"),
        ("real", "1,2,3", "`1,2,3` is not a row index"),
        ("real", "1 2 \u{fffd}", "`\\xef\\xbf\\xbd` is not a number"),
        ("integer", "1 2 1.5", "`1.5` is not an integer, which the banner promises"),
        ("integer", "1 2 -", "`-` is not an integer"),
        ("integer", "1 2 nan", "`nan` is not an integer"),
        ("pattern", "1 2 1.0", "unexpected `1.0` after the entry; a pattern has no values"),
    ];
    for (field, entry, message) in cases {
        let value = if field == "pattern" { "" } else { "1" };
        let body = format!("2 3 2\n% comment\n\n1 1 {value}\n{entry}\n0 0 0 0 also wrong\n");
        let refusal =
            refusal::<f64>(with_banner(&format!("coordinate {field} general"), &body).as_bytes());
        assert!(refusal.0 == Some(6) && refusal.1.contains(message), "{entry:?}: {refusal:?}");
    }
    let single = with_banner("coordinate real general", "1 1 1\n1 1 1e300\n");
    assert_eq!(
        refusal::<f32>(single.as_bytes()),
        (Some(3), "`1e300` is too large for f32; read the file as f64".into())
    );
    let diagonal = with_banner("coordinate real skew-symmetric", "2 2 1\n2 2 0\n");
    assert!(refusal::<f64>(diagonal.as_bytes()).1.starts_with("entry 2, 2 is on the diagonal"));
    let array = with_banner("array real general", "2 1\n1\n2 3\n");
    assert_eq!(refusal::<f64>(array.as_bytes()).0, Some(4));
}

#[test]
fn fewer_or_more_entries_than_declared() {
    let few = with_banner("coordinate real general", "2 2 3\n1 1 1\n2 2 1\n");
    assert_eq!(
        refusal::<f64>(few.as_bytes()),
        (Some(5), "the file ends after 2 of the 3 entries it declares".into())
    );
    let many = with_banner("coordinate real general", "2 2 1\n1 1 1\n% comment\n2 2 1\n\n2 1 1\n");
    let message = "the file declares 1 entries, but has 3; this is the first too many";
    assert_eq!(refusal::<f64>(many.as_bytes()), (Some(5), message.into()));
    let none = with_banner("coordinate real general", "2 2 0\n1 1 1\n");
    assert_eq!(refusal::<f64>(none.as_bytes()).0, Some(3));
    // The first error in the file is reported, independent of what follows it.
    let many_then_bad = with_banner("coordinate real general", "2 2 1\n1 1 1\n2 2 1\nrubbish\n");
    assert_eq!(refusal::<f64>(many_then_bad.as_bytes()).0, Some(4));
    let bad_then_many = with_banner("coordinate real general", "2 2 1\nrubbish\n2 2 1\n2 2 1\n");
    assert_eq!(refusal::<f64>(bad_then_many.as_bytes()).0, Some(3));
}

#[test]
fn huge_promises_cost_nothing() {
    let entries =
        with_banner("coordinate real general", "1000000 4000000000 1000000000000000000\n1 1 1\n");
    let message = "the file ends after 1 of the 1000000000000000000 entries it declares";
    let unlimited = |text: &str| parse::<f64>(text.as_bytes()).unwrap_err().to_string();
    assert!(unlimited(&entries).contains(message));
    let array = with_banner("array real general", "1000000000 1000000000\n1\n");
    assert!(unlimited(&array).contains("ends after 1 of the 1000000000000000000 entries"));
    let rows = with_banner("coordinate pattern general", "4000000000 1 1\n1 1\n");
    assert!(refusal::<f64>(rows.as_bytes()).1.contains("above the limit of 1048576"));
}

#[test]
fn entries_above_the_diagonal_of_a_symmetric_file_are_counted() {
    let counted = |symmetry: &str| {
        let body = "3 3 4\n1 1 1\n2 1 1\n1 2 1\n1 3 1\n";
        let text = format!("%%MatrixMarket matrix coordinate real {symmetry}\n{body}");
        let count = std::sync::atomic::AtomicU64::new(0);
        let a = Reader::new().count_above(&count).parse::<f64>(text.as_bytes()).unwrap();
        (count.into_inner(), a.values().to_vec())
    };
    assert_eq!(counted("symmetric"), (2, vec![1.0, 2.0, 1.0, 2.0, 1.0]));
    assert_eq!(counted("general"), (0, vec![1.0; 4]));
}

//! Tests of dictionaries, of the choice of encoding, and of rejected values.

use super::super::sink::Sink;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn of<T: Scalar>(values: &[T]) -> ValueSet {
    let mut set = ValueSet::default();
    set.add(values);
    set
}

#[test]
fn bits_decide() {
    assert_eq!(of::<f64>(&[]).count(), Some(0));
    assert_eq!(of(&[0.0f32, -0.0, 0.0, f32::NAN, f32::NAN]).count(), Some(3));
}

#[test]
fn ones() {
    assert!(of(&[1.0f32; 5]).is_one::<f32>());
    assert!(of(&[1.0f64]).is_one::<f64>());
    assert!(!of(&[1.0f64, 2.0]).is_one::<f64>());
    assert!(!of(&[0.0f64]).is_one::<f64>());
    assert!(!of::<f64>(&[]).is_one::<f64>());
}

#[test]
fn counting_stops_past_the_limit() {
    let values: Vec<f64> = (0..1000).map(f64::from).collect();
    assert_eq!(of(&values[..DICTIONARY]).count(), Some(DICTIONARY));
    assert_eq!(of(&values[..DICTIONARY + 1]).count(), None);
    assert_eq!(of(&values).count(), None);
    let halves = |at: usize, end: usize| of(&values[..at]).merge(of(&values[at..end])).count();
    assert_eq!(halves(100, DICTIONARY), Some(DICTIONARY));
    assert_eq!(halves(100, DICTIONARY + 1), None);
    assert_eq!(halves(1, 999), None);
    assert_eq!(halves(999, 1000), None);
}

#[test]
fn threads_find_what_one_finds() {
    let mut values: Vec<f64> =
        (0..4 * TOGETHER * CHUNK).map(|i| (i / (TOGETHER * CHUNK) * 50 + i % 50) as f64).collect();
    assert_eq!(ValueSet::of(&values).count(), Some(200));
    let last = values.len() - 1;
    for new in 0..DICTIONARY - 200 {
        values[last - 7 * new] = 0.5 + new as f64;
    }
    let set = ValueSet::of(&values);
    assert_eq!((set.count(), set.values::<f64>().len()), (Some(DICTIONARY), DICTIONARY));
    values[CHUNK] = -1.0;
    assert_eq!(ValueSet::of(&values).count(), None);
}

#[test]
fn a_value_that_breaks_a_pattern_is_not_missed() {
    // Every position of several periods, also after a long irregular beginning.
    for (period, irregular) in [1, 2, 3, 7, 16, 17, 40].into_iter().flat_map(|p| [(p, 0), (p, 400)])
    {
        let value = |i| if i < irregular { i * i % 211 % (period + 3) } else { i % period };
        let values: Vec<f64> = (0..1000).map(|i| f64::from(value(i))).collect();
        for place in (0..1000).step_by(1 + period as usize % 3) {
            let mut broken = values.clone();
            broken[place] = -1.0;
            let kept = broken.iter().map(|value| value.to_bits()).collect::<BTreeSet<_>>().len();
            assert_eq!(
                of(&broken).count(),
                Some(kept),
                "period {period} from {irregular}, place {place}"
            );
        }
    }
}

proptest! {
    #[test]
    fn as_many_as_there_are(
        pattern in prop::collection::vec(0u8..6, 1..50),
        breaks in prop::collection::vec((0usize..3000, 0u16..2000), 0..400),
        len in 0usize..3000,
    ) {
        let mut values: Vec<f32> = (0..len).map(|i| f32::from(pattern[i % pattern.len()])).collect();
        for (place, value) in breaks {
            if let Some(old) = values.get_mut(place) {
                *old = f32::from(value);
            }
        }
        let kept = values.iter().map(|value| value.to_bits()).collect::<BTreeSet<_>>();
        let set = of(&values);
        prop_assert_eq!(set.count(), (kept.len() <= DICTIONARY).then_some(kept.len()));
        if set.count().is_some() {
            prop_assert_eq!(set.bits().collect::<BTreeSet<_>>(), kept.iter().map(|&bits| bits.into()).collect());
        }
    }
}

#[test]
fn a_dictionary_keeps_every_bit() {
    let nan = f64::from_bits(0x7ff8_0000_dead_beef);
    let values = [0.0, -0.0, f64::NAN, nan, f64::INFINITY, 1.0, f64::from_bits(1)];
    let Coder::Dictionary(dictionary) = Coder::of(&values) else { panic!("seven values") };
    let codes = values.map(|value| dictionary.code(value));
    assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), values.len());
    let kept = &dictionary.values;
    assert_eq!(codes.map(|code| kept[usize::from(code)].to_bits()), values.map(f64::to_bits));
    assert!(kept.windows(2).all(|pair| pair[0].to_bits() < pair[1].to_bits()));
}

#[test]
fn the_fewest_bytes_are_taken() {
    assert!(matches!(Coder::<f32>::of(&[]), Coder::Same(0.0)));
    assert!(matches!(Coder::of(&[7.0f32; 9]), Coder::Same(7.0)));
    assert!(matches!(Coder::of(&[0.0f64, -0.0]), Coder::Dictionary(_)));
    let many: Vec<f32> = (0..100_000).map(|i| (i % 257) as f32).collect();
    assert!(matches!(Coder::of(&many), Coder::Plain));
    let Coder::Dictionary(dictionary) = Coder::of(&many[..256]) else { panic!("256 values") };
    assert!(many[..256].iter().all(|&v| dictionary.values[usize::from(dictionary.code(v))] == v));
}

#[test]
fn codes_need_room_for_what_they_stand_for() {
    let values: Vec<f64> = (0..1000).map(|k| f64::from(k % 257)).collect();
    assert_eq!(coded(&values, DICTIONARY), None);
    let (codes, dictionary) = coded(&values[..256], DICTIONARY).unwrap();
    assert!(
        codes.iter().zip(&values).all(|(&code, value)| dictionary[usize::from(code)] == *value)
    );
    assert_eq!(coded(&[0.0, -0.0], 1), None);
    assert_eq!(coded(&[3.0f32; 5], 1), Some((vec![], vec![3.0])));
    let (codes, dictionary) = coded(&[3.0f32; 5], DICTIONARY).unwrap();
    assert_eq!((codes, dictionary[0], dictionary.len()), (vec![0; 5], 3.0, DICTIONARY));
    assert_eq!(coded::<f32>(&[], 1), Some((vec![], vec![0.0])));
}

#[test]
fn fewer_bytes_hold_all_or_none() {
    let values = [1.5f64, -0.0, f64::INFINITY, 65504.0];
    let coder = Coder::narrow(&values, Precision::F16);
    assert!(matches!(coder, Coder::Narrow(Precision::F16)) && coder.size() == 2);
    assert!(matches!(Coder::narrow(&values, Precision::Bf16), Coder::Plain));
    assert!(matches!(Coder::narrow(&[0.1f32], Precision::F32), Coder::Plain), "no fewer bytes");
    for precision in [Precision::F16, Precision::F32] {
        let coder = Coder::narrow(&values, precision);
        let mut stored = Stored::zeroed(&coder, values.len());
        let sink = Sink::new(&mut stored, &coder);
        // SAFETY: one thread, and positions in range.
        (0..values.len()).for_each(|at| unsafe { sink.put(at, values[at]) });
        assert_eq!((stored.bytes(), stored.narrow()), (precision.size() * 4, Some(precision)));
        let found: Vec<u64> = (0..4).map(|at| stored.get(at, &[]).to_bits()).collect();
        assert_eq!(found, values.map(f64::to_bits));
    }
    assert_eq!(narrowed(&[1.0, 2.0, 0.1, 0.3], Precision::F16).unwrap_err(), 2);
    assert!(
        matches!(narrowed(&[1.0, 2.0], Precision::F16), Ok(Narrowed::Halves(halves)) if halves == [0x3c00, 0x4000])
    );
}

proptest! {
    #[test]
    fn agrees_with_a_set(values in prop::collection::vec(-200i32..200, 0..900), at in 0usize..900) {
        let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
        let (a, b) = values.split_at(at.min(values.len()));
        let expected = values.iter().map(|v| v.to_bits()).collect::<BTreeSet<_>>().len();
        let expected = Some(expected).filter(|&count| count <= DICTIONARY);
        prop_assert_eq!(of(&values).count(), expected);
        prop_assert_eq!(of(a).merge(of(b)).count(), expected);
    }
}

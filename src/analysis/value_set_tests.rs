//! Tests of the search for distinct values.

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
    let mut values: Vec<f64> = (0..4 * CHECKS_PER_TASK * VALUES_PER_CHECK)
        .map(|i| (i / (CHECKS_PER_TASK * VALUES_PER_CHECK) * 50 + i % 50) as f64)
        .collect();
    assert_eq!(ValueSet::of(&values).count(), Some(200));
    let last = values.len() - 1;
    for new in 0..DICTIONARY - 200 {
        values[last - 7 * new] = 0.5 + new as f64;
    }
    let set = ValueSet::of(&values);
    assert_eq!((set.count(), set.values::<f64>().len()), (Some(DICTIONARY), DICTIONARY));
    values[VALUES_PER_CHECK] = -1.0;
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
        let value = |i: usize| f32::from(pattern[i % pattern.len()]);
        let mut values: Vec<f32> = (0..len).map(value).collect();
        for (place, value) in breaks {
            if let Some(old) = values.get_mut(place) {
                *old = f32::from(value);
            }
        }
        let kept: BTreeSet<u64> = values.iter().map(|value| value.to_bits().into()).collect();
        let set = of(&values);
        prop_assert_eq!(set.count(), (kept.len() <= DICTIONARY).then_some(kept.len()));
        if set.count().is_some() {
            prop_assert_eq!(set.bits().collect::<BTreeSet<u64>>(), kept);
        }
    }
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

//! Tests of dictionaries, of the choice of encoding, and of rejected values.

use super::*;
use std::collections::BTreeSet;

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
        let mut stored = Stored::zeroed(&coder, values.len()).unwrap();
        let sink = Sink::new(&mut stored, &coder);
        // SAFETY: one thread, and positions in range.
        (0..values.len()).for_each(|at| unsafe { sink.put(at, values[at]) });
        let narrow = match stored {
            Stored::Halves(precision, _) => Some(precision),
            Stored::Singles(_) => Some(Precision::F32),
            _ => None,
        };
        assert_eq!((stored.bytes(), narrow), (precision.size() * 4, Some(precision)));
        let found: Vec<u64> = (0..4).map(|at| stored.get(at, &[]).to_bits()).collect();
        assert_eq!(found, values.map(f64::to_bits));
    }
    let halves = |values: &[f64]| narrowed(values, Precision::F16, |bits| bits as u16);
    let refused = halves(&[1.0, 2.0, 0.1, 0.3]);
    assert!(matches!(refused, Err(Error::ValueInexact { entry: 2, .. })), "{refused:?}");
    assert_eq!(halves(&[1.0, 2.0]).unwrap(), [0x3c00, 0x4000]);
}

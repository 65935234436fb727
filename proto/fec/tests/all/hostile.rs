//! Invalid parities are refused and counted, and use bounded memory.

use crate::path::{Content, Datagram, Held, Receiver, Sent, drain, encode};
use longhaul_fec::{
    BODY_MAX, Body, Decoder, DecoderConfig, Encoder, Layout, Parity, ParityId, Refusal,
};
use longhaul_units::{Rng, SplitMix64};
use proptest::prelude::*;
use std::rc::Rc;

const GOOD: ParityId = ParityId { base: 100, symbols: 4, stride: 1, rows: 2, row: 0 };
const HEAD: [u8; 8] = [4, 0, 0, 2, b'h', b'e', b'a', b'd'];

fn datagram() -> Rc<Datagram> {
    Rc::new(Datagram { head: b"head".to_vec(), body: Content::Bytes(vec![1, 2]) })
}

/// A decoder that has received `numbers`.
fn decoder(numbers: impl IntoIterator<Item = u64>) -> Decoder<Held> {
    let mut decoder = Decoder::new(DecoderConfig {
        reach: 256,
        quiet_reach: 256,
        held_bytes_max: 1000,
        parities_max: 8,
    });
    for number in numbers {
        decoder.on_data(number, Held(datagram()), |_| panic!("nothing was lost"));
    }
    decoder
}

fn offer(decoder: &mut Decoder<Held>, id: ParityId, body: &[u8]) -> Result<(), Refusal> {
    decoder.on_parity(&Parity { id, head: &HEAD, body: Body::bytes(body) }, |_| {
        panic!("nothing is to be had")
    })
}

#[test]
fn impossible_parities_are_malformed() {
    let mut decoder = decoder([100]);
    for id in [
        ParityId { symbols: 0, ..GOOD },
        ParityId { symbols: 129, ..GOOD },
        ParityId { stride: 0, ..GOOD },
        ParityId { stride: 3, ..GOOD },
        ParityId { stride: 128, ..GOOD },
        ParityId { rows: 0, ..GOOD },
        ParityId { rows: 9, ..GOOD },
        ParityId { row: 2, ..GOOD },
        ParityId { base: u64::MAX - 3, ..GOOD },
        ParityId { base: u64::MAX, symbols: 1, ..GOOD },
    ] {
        assert_eq!(offer(&mut decoder, id, &[0; 2]), Err(Refusal::Malformed), "{id:?}");
        let header = Parity { id, head: &HEAD, body: Body::EMPTY }.header();
        let bytes = [&header[..], &HEAD].concat();
        // The header excludes 9 rows as well as 0 symbols.
        assert_eq!(Parity::parse(&bytes), Err(Refusal::Malformed), "{id:?}");
    }
    assert_eq!(offer(&mut decoder, GOOD, &[0; BODY_MAX + 1]), Err(Refusal::Malformed));
    for head in [&[0; 3][..], &[0; 197]] {
        let parity = Parity { id: GOOD, head, body: Body::EMPTY };
        assert_eq!(decoder.on_parity(&parity, |_| ()), Err(Refusal::Malformed));
    }
    assert_eq!(decoder.counters().malformed, 13);
    assert_eq!(decoder.groups_under_repair(), 0);
}

#[test]
fn parities_far_from_what_arrived_are_refused() {
    let mut none = decoder([]);
    assert_eq!(offer(&mut none, GOOD, &[0; 2]), Err(Refusal::Ahead));
    let mut decoder = decoder([10_000]);
    assert_eq!(offer(&mut decoder, ParityId { base: 9_744, ..GOOD }, &[0; 2]), Err(Refusal::Old));
    assert_eq!(offer(&mut decoder, ParityId { base: 9_745, ..GOOD }, &[0; 2]), Ok(()));
    assert_eq!(offer(&mut decoder, ParityId { base: 10_253, ..GOOD }, &[0; 2]), Ok(()));
    assert_eq!(
        offer(&mut decoder, ParityId { base: 10_254, ..GOOD }, &[0; 2]),
        Err(Refusal::Ahead)
    );
    assert_eq!((decoder.counters().old, decoder.counters().ahead), (1, 1));
}

#[test]
fn overlapping_groups_are_refused() {
    let mut decoder = decoder([100]);
    assert_eq!(offer(&mut decoder, GOOD, &[0; 2]), Ok(()));
    for id in [
        ParityId { base: 103, ..GOOD },
        ParityId { base: 97, ..GOOD },
        ParityId { base: 99, stride: 2, ..GOOD },
        ParityId { symbols: 5, ..GOOD },
        ParityId { rows: 3, row: 1, ..GOOD },
    ] {
        assert_eq!(offer(&mut decoder, id, &[0; 2]), Err(Refusal::Overlapping), "{id:?}");
    }
    assert_eq!(decoder.counters().overlapping, 5);
    // A finished group keeps its numbers too.
    (101..104).for_each(|number| decoder.on_data(number, Held(datagram()), |_| ()));
    assert_eq!(decoder.groups_under_repair(), 0);
    assert_eq!(offer(&mut decoder, ParityId { base: 103, ..GOOD }, &[0; 2]), Ok(()));
    assert_eq!(
        offer(&mut decoder, ParityId { base: 97, ..GOOD }, &[0; 2]),
        Err(Refusal::Overlapping)
    );
}

#[test]
fn repeats_that_differ_are_inconsistent() {
    let mut decoder = decoder([100]);
    assert_eq!(offer(&mut decoder, GOOD, &[1; 2]), Ok(()));
    assert_eq!(offer(&mut decoder, GOOD, &[1; 2]), Ok(()));
    assert_eq!(decoder.counters().repeated, 1);
    assert_eq!(offer(&mut decoder, GOOD, &[2; 2]), Err(Refusal::Inconsistent));
    assert_eq!(
        offer(&mut decoder, ParityId { row: 1, ..GOOD }, &[1; 3]),
        Err(Refusal::Inconsistent)
    );
    let lengths = Parity { id: ParityId { row: 1, ..GOOD }, head: &HEAD, body: Body::Virtual(2) };
    assert_eq!(decoder.on_parity(&lengths, |_| ()), Err(Refusal::Inconsistent));
    assert_eq!(decoder.counters().inconsistent, 3);
}

#[test]
fn a_sum_that_is_no_symbol_gives_nothing() {
    // The recovered symbol has bytes behind its end, lengths beyond its bytes, or is shorter than
    // received members.
    for (head, body) in [
        ([0; 8], &[0, 1][..]),
        ([0, 0, 0, 0, 1, 0, 0, 0], &[0, 0]),
        ([255, 0, 0, 0, 0, 0, 0, 0], &[0, 0]),
        ([0, 0, 255, 0, 0, 0, 0, 0], &[0, 0]),
        ([0; 8], &[0]),
    ] {
        let mut decoder = decoder([100]);
        let xor = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a ^ b).collect::<Vec<_>>();
        let (head, body) = (xor(&head, &HEAD), xor(body, &[1, 2]));
        let parity =
            Parity { id: ParityId { symbols: 2, ..GOOD }, head: &head, body: Body::bytes(&body) };
        assert_eq!(decoder.on_parity(&parity, |back| panic!("{back:?}")), Ok(()));
        assert_eq!(decoder.counters().inconsistent, 1);
        assert_eq!(decoder.groups_under_repair(), 0);
    }
}

#[test]
fn memory_is_bounded_when_nothing_can_be_repaired() {
    let mut decoder = decoder([]);
    for number in 0..20_000_u64 {
        decoder.on_data(number, Held(datagram()), |_| ());
        assert!(decoder.held_bytes() <= 1000);
        // Each covers three numbers that never arrive.
        let id = ParityId { base: number + 1, stride: 64, ..GOOD };
        let _ = decoder.on_parity(&Parity { id, head: &HEAD, body: Body::bytes(&[0; 2]) }, |_| ());
        assert!(decoder.groups_under_repair() <= 8);
    }
    assert!(decoder.counters().given_up > 1000);
}

#[test]
fn a_leap_of_numbers_forgets_what_was_held() {
    let mut decoder = decoder(0..250);
    assert_eq!(decoder.held_bytes(), 500);
    for number in 1 << 50..(1 << 50) + 600 {
        decoder.on_data(number, Held(datagram()), |_| ());
    }
    assert!(decoder.held_bytes() <= 2 * 257, "{}", decoder.held_bytes());
    decoder.on_data(249, Held(datagram()), |_| ());
    decoder.on_data(u64::MAX, Held(datagram()), |_| ());
    assert_eq!(decoder.counters().late, 2);
    decoder.on_data(u64::MAX - 1, Held(datagram()), |_| ());
    decoder.on_data(u64::MAX - 2, Held(datagram()), |_| ());
}

#[test]
fn data_after_its_repair_is_a_duplicate() {
    let mut rng = SplitMix64::new(3);
    let data: Vec<_> = (0..4).map(|_| Datagram::random(&mut rng, 100)).collect();
    let sent = encode(&mut Encoder::new(Some(Layout::new(4, 1, 1).unwrap())), 0, &data);
    let mut receiver = Receiver::new(DecoderConfig::default());
    receiver.expect(0, &data);
    [0, 1, 3, 4].iter().for_each(|&i| receiver.take(&sent[i]));
    assert_eq!(receiver.recovered, [2]);
    receiver.decoder.on_data(2, Held(data[2].clone()), |_| panic!("it is there"));
    receiver.take(&sent[4]);
    let counters = receiver.decoder.counters();
    assert_eq!((counters.recovered, counters.duplicates, counters.redundant), (1, 1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Forged parities among valid ones: no panic, bounded memory, everything counted.
    #[test]
    fn forged_parities_do_no_harm(seed: u64) {
        let mut rng = SplitMix64::new(seed);
        let data: Vec<_> = (0..2000).map(|_| Datagram::random(&mut rng, 50)).collect();
        let mut encoder = Encoder::new(Some(Layout::new(10, 2, 4).unwrap()));
        let mut sent = encode(&mut encoder, 0, &data);
        drain(&mut encoder, &mut sent);
        let mut decoder = Decoder::new(DecoderConfig {
            reach: 512,
            quiet_reach: 512,
            held_bytes_max: 20_000,
            parities_max: 32,
        });
        let (mut forged, mut at) = (0, 0);
        for sent in &sent {
            if rng.chance(0.5) {
                let bytes: Vec<u8> = (0..rng.below(200)).map(|_| rng.next_u64() as u8).collect();
                let id = ParityId {
                    base: (at + rng.below(1500)).saturating_sub(700),
                    symbols: rng.below(140) as u8,
                    stride: 1 << rng.below(8),
                    rows: rng.below(10) as u8,
                    row: rng.below(8) as u8,
                };
                let body = match rng.chance(0.5) {
                    true => Body::bytes(&bytes),
                    false => Body::Virtual(rng.below(20_000) as usize),
                };
                let _ = decoder
                    .on_parity(&Parity { id, head: &bytes[..bytes.len().min(60)], body }, |_| ());
                let _ = Parity::parse(&bytes);
                forged += 1;
            }
            if rng.chance(0.1) {
                continue;
            }
            match sent {
                Sent::Data(number) => {
                    at = *number;
                    decoder.on_data(at, Held(data[at as usize].clone()), |_| ());
                }
                Sent::Parity { bytes, body, .. } => {
                    let (id, head, _) = Parity::parse(bytes).unwrap();
                    let _ = decoder.on_parity(&Parity { id, head, body: body.body() }, |_| ());
                }
            }
            prop_assert!(decoder.held_bytes() <= 20_000);
            prop_assert!(decoder.groups_under_repair() <= 32);
        }
        let c = *decoder.counters();
        prop_assert!(
            forged > 0 && c.malformed + c.old + c.ahead + c.overlapping + c.inconsistent > 0
        );
    }
}

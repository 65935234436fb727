//! Losses are recovered byte for byte, or not at all.

use crate::path::{Content, Datagram, Receiver, Sent, drain, encode};
use longhaul_fec::{AddError, BODY_MAX, Body, DecoderConfig, Encoder, HEAD_MAX, Layout};
use longhaul_units::{Rng, SplitMix64};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::rc::Rc;

fn layouts() -> impl Strategy<Value = Layout> {
    (1..=128_usize, 1..=8_usize, 0..=6_u32)
        .prop_map(|(symbols, rows, shift)| Layout::new(symbols, rows, 1 << shift).unwrap())
        .prop_filter("short tests", |layout| layout.block() <= 600)
}

/// A decoder configuration with `reach`, and the same reach without parity.
fn remembers(reach: usize) -> DecoderConfig {
    DecoderConfig { reach, quiet_reach: reach, ..DecoderConfig::default() }
}

/// The group of each datagram: the base in the parities' words.
fn groups(sent: &[Sent]) -> BTreeMap<u64, Vec<usize>> {
    let (mut of_number, mut groups) = (BTreeMap::new(), BTreeMap::<u64, Vec<usize>>::new());
    for (i, sent) in sent.iter().enumerate() {
        if let Sent::Parity { id, .. } = sent {
            groups.entry(id.base).or_default().push(i);
            of_number.extend(
                (0..u64::from(id.symbols)).map(|at| (id.base + at * u64::from(id.stride), id.base)),
            );
        }
    }
    for (i, sent) in sent.iter().enumerate() {
        if let Sent::Data(number) = sent {
            groups.entry(of_number[number]).or_default().push(i);
        }
    }
    groups
}

/// Returns the losses among `sent` if each group loses `count` of its datagrams.
fn lose(
    sent: &[Sent],
    rng: &mut SplitMix64,
    count: impl Fn(&mut SplitMix64) -> usize,
) -> Vec<bool> {
    let mut lost = vec![false; sent.len()];
    for mut members in groups(sent).into_values() {
        for _ in 0..count(rng).min(members.len()) {
            lost[members.swap_remove(rng.below(members.len() as u64) as usize)] = true;
        }
    }
    lost
}

/// Reorders datagrams, each by at most `distance` places.
fn jitter(rng: &mut SplitMix64, distance: u64, sent: &mut Vec<Sent>) {
    let mut keyed: Vec<_> =
        sent.drain(..).enumerate().map(|(i, s)| (i as u64 + rng.below(distance + 1), s)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    sent.extend(keyed.into_iter().map(|(_, s)| s));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn up_to_m_losses_of_a_group_are_repaired(
        layout in layouts(),
        seed: u64,
        first in 0..1_u64 << 40,
        count in 1..900_usize,
        reordering in 0..40_u64,
    ) {
        let mut rng = SplitMix64::new(seed);
        let data: Vec<_> = (0..count).map(|_| Datagram::random(&mut rng, 300)).collect();
        let mut encoder = Encoder::new(Some(layout));
        let mut sent = encode(&mut encoder, first, &data);
        encoder.flush();
        drain(&mut encoder, &mut sent);
        let lost = lose(&sent, &mut rng, |rng| rng.below(layout.rows() as u64 + 1) as usize);
        let mut arriving: Vec<_> =
            sent.into_iter().zip(lost).filter(|(_, lost)| !lost).map(|(sent, _)| sent).collect();
        jitter(&mut rng, reordering, &mut arriving);
        // A parity can be used once something has arrived.
        if let Some(at) = arriving.iter().position(|sent| matches!(sent, Sent::Data(_))) {
            arriving.swap(0, at);
            let mut receiver = Receiver::new(remembers(4096));
            receiver.expect(first, &data);
            arriving.iter().for_each(|sent| receiver.take(sent));
            prop_assert_eq!(receiver.missing(), vec![]);
            prop_assert_eq!(receiver.decoder.groups_under_repair(), 0);
        }
    }

    #[test]
    fn more_losses_never_give_wrong_data(
        layout in layouts(), seed: u64, count in 1..900_usize, loss in 0.0..0.9_f64,
    ) {
        let mut rng = SplitMix64::new(seed);
        let data: Vec<_> = (0..count).map(|_| Datagram::random(&mut rng, 300)).collect();
        let mut encoder = Encoder::new(Some(layout));
        let mut sent = encode(&mut encoder, 5, &data);
        encoder.flush();
        drain(&mut encoder, &mut sent);
        let mut receiver = Receiver::new(remembers(4096));
        receiver.expect(5, &data);
        // The receiver compares recovered datagrams with those sent.
        receiver.take(&sent[0]);
        sent[1..].iter().filter(|_| !rng.chance(loss)).for_each(|sent| receiver.take(sent));
        receiver.missing();
    }

    #[test]
    fn a_burst_of_stride_times_m_is_repaired_wherever_it_falls(
        layout in layouts(), seed: u64, blocks in 1..4_usize, at in 0.0..1.0_f64,
    ) {
        let mut rng = SplitMix64::new(seed);
        let data: Vec<_> =
            (0..=layout.block() * blocks).map(|_| Datagram::random(&mut rng, 40)).collect();
        let mut encoder = Encoder::new(Some(layout));
        let mut sent = encode(&mut encoder, 0, &data);
        encoder.flush();
        drain(&mut encoder, &mut sent);
        let burst = layout.stride() * layout.rows();
        let start = 1 + ((sent.len() - 1) as f64 * at) as usize;
        let mut receiver = Receiver::new(remembers(4096));
        receiver.expect(0, &data);
        for (i, sent) in sent.iter().enumerate() {
            if !(start..start + burst).contains(&i) {
                receiver.take(sent);
            }
        }
        // The one DATA after the last block is a block of its own with a stride of 1.
        let is_in_the_last_block = start + burst > sent.len() - 1 - layout.rows();
        prop_assert!(is_in_the_last_block || receiver.missing().is_empty());
    }

    #[test]
    fn layouts_change_between_blocks_without_a_gap(
        changes in prop::collection::vec(
            (prop::option::weighted(0.8, layouts()), 1..300_usize, any::<bool>()),
            1..6,
        ),
        seed: u64,
    ) {
        let mut rng = SplitMix64::new(seed);
        let mut encoder = Encoder::new(None);
        let (mut sent, mut data, mut unprotected) =
            (Vec::new(), Vec::<Rc<Datagram>>::new(), Vec::new());
        for (layout, count, flush) in changes {
            encoder.set_layout(layout);
            for _ in 0..count {
                let number = data.len() as u64;
                data.push(Datagram::random(&mut rng, 60));
                let before = encoder.unprotected() + encoder.due();
                sent.append(&mut encode(&mut encoder, number, &data[data.len() - 1..]));
                if before == 0
                    && encoder.unprotected() == 0
                    && !matches!(sent.last(), Some(Sent::Parity { .. }))
                {
                    unprotected.push(number);
                }
            }
            if flush {
                encoder.flush();
                drain(&mut encoder, &mut sent);
            }
        }
        encoder.flush();
        drain(&mut encoder, &mut sent);
        prop_assert_eq!(encoder.overrun(), 0);
        let protected: Vec<_> = sent
            .iter()
            .filter(|sent| !matches!(sent, Sent::Data(number) if unprotected.contains(number)))
            .cloned()
            .collect();
        // Each group loses one; a layout has at least one parity.
        let lost = lose(&protected, &mut rng, |_| 1);
        let mut receiver = Receiver::new(remembers(8192));
        // Something must have arrived before a parity can be used.
        receiver.expect(0, &data);
        let ahead = data.len() as u64;
        receiver.sent.insert(ahead, Datagram::random(&mut rng, 9));
        receiver.take(&Sent::Data(ahead));
        let mut lost =
            protected.iter().zip(lost).filter(|(_, lost)| *lost).map(|(sent, _)| sent).peekable();
        for sent in &sent {
            if lost.next_if(|lost| *lost == sent).is_none() {
                receiver.take(sent);
            }
        }
        prop_assert!(lost.next().is_none());
        prop_assert_eq!(receiver.missing(), vec![]);
    }

    #[test]
    fn bodies_that_are_lengths_come_back_as_lengths(
        layout in layouts(), seed: u64, count in 1..900_usize,
    ) {
        let mut rng = SplitMix64::new(seed);
        // Acknowledgements have no body, and a simulator gives them as no bytes.
        let data: Vec<_> = (0..count)
            .map(|_| match rng.chance(0.2) {
                true => Rc::new(Datagram { head: vec![9; 62], body: Content::Bytes(Vec::new()) }),
                false => Datagram::synthetic(&mut rng),
            })
            .collect();
        let mut encoder = Encoder::new(Some(layout));
        let mut sent = encode(&mut encoder, 77, &data);
        encoder.flush();
        drain(&mut encoder, &mut sent);
        let lost = lose(&sent, &mut rng, |_| layout.rows());
        let mut receiver = Receiver::new(remembers(4096));
        receiver.expect(77, &data);
        let ahead = 77 + count as u64;
        receiver.sent.insert(ahead, Datagram::synthetic(&mut rng));
        receiver.take(&Sent::Data(ahead));
        sent.iter().zip(lost).filter(|(_, lost)| !lost).for_each(|(sent, _)| receiver.take(sent));
        prop_assert_eq!(receiver.missing(), vec![]);
    }
}

#[test]
fn one_parity_is_the_xor_of_the_group() {
    let mut encoder = Encoder::new(Some(Layout::new(3, 1, 1).unwrap()));
    for (number, body) in [[1, 2, 0], [4, 0, 0], [0, 8, 16]].iter().enumerate() {
        encoder.add(number as u64, &[], &Body::bytes(body)).unwrap();
    }
    let parity = encoder.next_parity().unwrap();
    assert_eq!(parity.body, Body::bytes(&[5, 10, 16]));
    assert_eq!(encoder.next_parity(), None);
}

#[test]
fn a_flush_protects_what_was_sent_with_few_parities() {
    let layout = Layout::new(20, 2, 16).unwrap();
    for count in 1..320 {
        let mut encoder = Encoder::new(Some(layout));
        for number in 0..count {
            assert_eq!(encoder.add(number, b"head", &Body::EMPTY), Ok(0));
        }
        assert_eq!(encoder.unprotected() as u64, count);
        let due = encoder.flush();
        assert!(due >= 2 && due <= 2.max(count as usize / 5), "{due} parities for {count}");
        assert_eq!(encoder.unprotected(), 0);
        assert_eq!(encoder.flush(), due);
    }
}

#[test]
fn what_is_too_long_is_named_and_leaves_the_rest_protected() {
    let mut encoder = Encoder::new(Some(Layout::new(20, 1, 1).unwrap()));
    assert_eq!(encoder.add(0, b"a", &Body::bytes(b"one")), Ok(0));
    let long = vec![0; BODY_MAX + 1];
    assert_eq!(encoder.add(1, b"b", &Body::bytes(&long)), Err(AddError::Body(BODY_MAX + 1)));
    assert_eq!(encoder.due(), 1);
    assert_eq!(encoder.next_parity().unwrap().body, Body::bytes(b"one"));
    assert_eq!(encoder.add(2, &[0; HEAD_MAX + 1], &Body::EMPTY), Err(AddError::Head(HEAD_MAX + 1)));
    assert_eq!(encoder.add(3, &[0; HEAD_MAX], &Body::bytes(&long[1..])), Ok(0));
}

#[test]
fn parities_that_nobody_takes_are_counted() {
    let mut encoder = Encoder::new(Some(Layout::new(2, 2, 2).unwrap()));
    for number in 0..12 {
        encoder.add(number, b"h", &Body::EMPTY).unwrap();
    }
    assert_eq!((encoder.due(), encoder.overrun()), (4, 8));
    assert_eq!(encoder.next_parity().unwrap().id.base, 8);
}

//! Floods by an attacker that can only send.

use crate::attacker::{OWN, Power, VICTIM, shared};
use crate::fleet::address_of;
use crate::forge::{self, AT, BOX_PORT, control, path};
use crate::stage::{BOTH, Keys, Stage, boxes, setup};
use crate::stranger::Stranger;
use longhaul_accel::DropReason;
use longhaul_seal::DropReason as SealDrop;
use longhaul_units::{Duration, Psn, Qpn, Rng, SplitMix64};
use longhaul_wan::format::{DatagramKind, Header, Hello};
use longhaul_wan::{DropReason as WanDrop, Seed};
use longhaul_wire::Udp;
use std::net::{IpAddr, Ipv4Addr};

fn own(n: u32) -> IpAddr {
    IpAddr::from(Ipv4Addr::from(0x0a42_0000 | n & 0xffff))
}

/// A datagram to the boxes' port with these bytes.
fn datagram(from: IpAddr, to: usize, body: &[u8]) -> Vec<u8> {
    let mut out = control(&path(from, address_of(to)), &Header::new(DatagramKind::Ping, 0), &[]);
    out.truncate(AT);
    out.extend(body);
    if let Some(udp) = Udp::find(&out) {
        udp.set_destination_port(&mut out, BOX_PORT);
        udp.finish_lengths(&mut out, body.len());
    }
    out
}

/// A question of each type from a stranger at `from`.
fn questions(rng: &mut SplitMix64, from: IpAddr, to: usize) -> Vec<Vec<u8>> {
    let way = path(from, address_of(to));
    // ASK and OPEN of the transport, according to docs/spec/wan-transport.md: 64 bytes in all.
    let hello = |step: u8, rng: &mut SplitMix64| {
        let mut body = [0; 64];
        body[..4].copy_from_slice(&[step, 0, 2, 2]);
        body[4..8].copy_from_slice(&7_u32.to_be_bytes());
        for at in [8, 16, 32, 40] {
            body[at..at + 8].copy_from_slice(&rng.next_u64().to_be_bytes());
        }
        assert!(Hello::read(&body).is_some());
        control(&way, &Header::new(DatagramKind::Hello, 0), &body)
    };
    let header = Header::new(DatagramKind::Ping, rng.next_u64() as u32);
    let ping = forge::ping(&way, &header, 77, rng.next_u64());
    // DATA, CONTROL, ASK, INIT and UNKNOWN of the seal.
    let sealed = |kind: u8, len: usize, rng: &mut SplitMix64| {
        let mut body = vec![0; len];
        body[..2].copy_from_slice(&[0xe1, kind << 4]);
        // Index of keys, except in ASK and INIT, which precede them.
        let keys = if matches!(kind, 2 | 4) { 0 } else { rng.next_u64() as u32 };
        body[4..8].copy_from_slice(&keys.to_be_bytes());
        body[8..16].copy_from_slice(&rng.next_u64().to_be_bytes());
        if kind == 4 {
            // Index of the new keys.
            body[16] = 1;
        }
        datagram(from, to, &body)
    };
    let mut all = vec![hello(1, rng), hello(3, rng), ping];
    all.extend(
        [(0, 200), (1, 60), (2, 48), (4, 140), (6, 16)].map(|(kind, len)| sealed(kind, len, rng)),
    );
    all
}

#[test]
fn questions_without_end_get_bounded_answers_none_longer_and_stop_no_flow() {
    for keys in BOTH {
        let mut stage = Stage::with(keys, Power::Send);
        let mut rng = SplitMix64::new(3);
        let outcome = stage.attacked(|stage| {
            for n in 0..12 {
                for question in questions(&mut rng, OWN, n % 2) {
                    stage.send(n % 2, question);
                }
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        let tally = stage.tally.borrow();
        let (sent, heard) = (tally.sent_bytes, tally.heard_bytes);
        assert!(heard > 0 && heard < sent / 4, "{heard} bytes for {sent}");
        for site in [0, 1] {
            match keys {
                Keys::With => {
                    assert!(stage.seal_dropped(site, SealDrop::TooManyQuestions) > 100);
                    assert!(stage.seal_dropped(site, SealDrop::HandshakeCookie) > 100);
                    assert!(stage.seal_dropped(site, SealDrop::ClearRefused) > 100);
                }
                Keys::Without => {
                    assert!(stage.transport_dropped(site, WanDrop::TooManyQuestions) > 100);
                    assert!(stage.transport_dropped(site, WanDrop::Unasked) > 100);
                }
            }
        }
    }
}

#[test]
fn no_question_of_a_stranger_has_a_longer_answer() {
    for keys in BOTH {
        let mut stage = Stage::with(keys, Power::Send);
        stage.meet();
        let mut rng = SplitMix64::new(4);
        for to in [0, 1] {
            for question in questions(&mut rng, OWN, to) {
                let len = question.len() as u64;
                let before = stage.tally.borrow().heard_bytes;
                stage.send(to, question);
                stage.run_for(Duration::from_ms(20));
                let heard = stage.tally.borrow().heard_bytes - before;
                assert!(heard <= len, "{heard} bytes for {len}");
            }
        }
        stage.assert_bounded();
    }
}

/// The attacker has a session, and asks in the name of a host without one.
#[test]
fn who_has_a_session_cannot_have_its_answers_sent_to_others() {
    for target in [0, 1] {
        let mut stage = Stage::with(Keys::Without, Power::Send);
        stage.meet();
        let mut stranger = Stranger::new(target, 666, Seed::of_scenario(666));
        for _ in 0..40 {
            stranger.turn(&mut stage);
            stage.run_for(Duration::from_ms(1));
        }
        let session = stranger.accepted.expect("let in");

        let before = stage.tally.borrow().victim_bytes;
        for nonce in 0..500 {
            let header =
                Header { number: nonce as u32, ..Header::new(DatagramKind::Ping, session) };
            let way = path(VICTIM, address_of(target));
            stage.send(target, forge::ping(&way, &header, 1, nonce));
            stage.run_for(Duration::from_ms(1));
        }
        assert_eq!(stage.tally.borrow().victim_bytes, before);
        stage.assert_bounded();
    }
}

/// RoCE from unlimited addresses to unlimited QPs, each of which could be a flow.
#[test]
fn flows_without_end_stop_no_flow_that_is_there() {
    for keys in BOTH {
        let mut setup = setup(1, boxes(keys));
        setup.limits.accelerator = |config| config.flows_max = 32;
        setup.limits.transport = |transport| transport.addresses_max = 16;
        let mut stage = Stage::new(&setup, Power::Send);
        let mut n = 0;
        let outcome = stage.attacked(|stage| {
            for _ in 0..20 {
                n += 1;
                let to = n as usize % 2;
                let way = path(own(n), address_of(to));
                let frame = forge::send(&way, Qpn::new(n & 0xfff), Psn::new(n), &[1; 200]);
                stage.send(to, frame);
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        for site in [0, 1] {
            match keys {
                Keys::With => assert!(stage.seal_dropped(site, SealDrop::ClearRdmaIn) > 1000),
                Keys::Without => {
                    let far = stage.fleet.site(site).accelerators()[1].counters();
                    assert!(far.flows_evicted + far.flow_table_full > 100, "{far:#?}");
                }
            }
        }
    }
}

/// The attacker has a session of its own, and uses it for traffic that takes memory: streams that
/// never end, and frames far ahead of missing ones.
#[test]
fn a_session_of_his_own_takes_no_more_than_its_bounds() {
    let mut setup = setup(1, boxes(Keys::Without));
    setup.limits.transport = |transport| {
        (transport.receive_bytes_max, transport.streams_max) = (1 << 20, 64);
        transport.reorder_frames_max = 256;
    };
    let mut stage = Stage::new(&setup, Power::Send);
    let mut stranger = Stranger::new(1, 666, Seed::of_scenario(666));
    let mut rng = SplitMix64::new(6);
    let mut number = 0;
    let outcome = stage.attacked(|stage| {
        stranger.turn(stage);
        let Some(session) = stranger.accepted else { return };
        for _ in 0..20 {
            number += 1;
            let way = path(OWN, address_of(1));
            let frame = forge::send(&way, Qpn::new(0x99), Psn::new(number), &[1; 1000]);
            let (stream, sequence) = (rng.below(200) as u32, 1 + rng.below(400) as u32);
            let header =
                Header { number, stream, sequence, ..Header::new(DatagramKind::Data, session) };
            stage.send(1, forge::tunnelled(&frame, &header));
        }
    });
    stage.assert_unharmed(&outcome);
    assert!(stage.transport_dropped(1, WanDrop::StreamOutside) > 1000);
    let refused =
        [WanDrop::StreamOutside, WanDrop::NoRoom].map(|of| stage.transport_dropped(1, of));
    assert!(refused.iter().sum::<u64>() > 1000, "{refused:?}");
}

/// Random bytes to random ports.
#[test]
fn noise_stops_nothing() {
    for keys in BOTH {
        let mut stage = Stage::with(keys, Power::Send);
        let mut rng = SplitMix64::new(8);
        let read = shared(0);
        let outcome = stage.attacked(|stage| {
            for _ in 0..30 {
                let mut body: Vec<u8> = (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect();
                if let Some(first) = body.first_mut().filter(|_| rng.chance(0.7)) {
                    *first = if rng.chance(0.5) { 0xe1 } else { 0x20 | (*first & 0xf) };
                }
                let to = rng.below(2) as usize;
                let mut frame = datagram(address_of(1 - to), to, &body);
                if rng.chance(0.2) {
                    let udp = Udp::find(&frame).expect("it is UDP");
                    udp.set_destination_port(&mut frame, 4791);
                }
                *read.borrow_mut() += 1;
                stage.send(to, frame);
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        let dropped = |site: usize| match keys {
            Keys::With => stage.sealed(site).drops.total(),
            Keys::Without => stage.transport(site).counters().passed,
        };
        assert!((0..2).all(|site| dropped(site) > 1000), "{}", read.borrow());
        assert_eq!(stage.accelerator_dropped(0, DropReason::StoreFull), 0);
    }
}

//! Tests that a frame leaves one end of a cable as it entered the other.

use longhaul_port::{DropReason, PortError};

use super::*;

const MODES: [Mode; 2] = [Mode::Native, Mode::Generic];

fn carries_every_length(mtu: u32, modes: [Mode; 2]) {
    in_namespace(move || {
        veth(mtu, 1);
        let (mut a, mut b) = (open("ea", modes[0]), open("eb", modes[1]));
        let longest = mtu as usize + 14;
        let lengths =
            [14, 15, 59, 60, 64, 1514, 3840, 3841, 4096, 4097, 8192, longest - 1, longest];
        let frames: Vec<_> =
            lengths.into_iter().filter(|len| *len <= longest).map(|len| frame(len, 9)).collect();
        for frame in &frames {
            send(&mut a, frame);
            send(&mut b, frame);
        }
        assert_eq!(receive_all(&mut a, frames.len()), frames);
        assert_eq!(receive_all(&mut b, frames.len()), frames);
        // A port does not receive its own frames.
        assert_eq!(receive(&mut a).len() + receive(&mut b).len(), 0);
        assert_eq!(a.counters().tx_drops.total() + b.counters().rx_drops.total(), 0);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert_eq!(
            (a.counters().tx_frames, a.counters().tx_bytes),
            (frames.len() as u64, bytes as u64)
        );
        let counted = b.xdp_counters();
        assert_eq!((counted.rx_dropped, counted.rx_ring_full, counted.tx_refused), (0, 0, 0));
        assert_eq!(counted.rx_gathered > 0, mtu > 4000);
        for (port, mode) in [(&a, modes[0]), (&b, modes[1])] {
            assert_eq!(port.manner().is_native, mode == Mode::Native, "{}", port.manner());
            let takes_parts = mtu > 4000 || mode == Mode::Generic;
            assert_eq!(port.manner().takes_parts, takes_parts, "{}", port.manner());
        }
    });
}

#[test]
fn of_every_length_in_native_mode() {
    carries_every_length(1500, [Mode::Native; 2]);
}

#[test]
fn of_every_length_in_generic_mode() {
    carries_every_length(1500, [Mode::Generic; 2]);
}

#[test]
fn of_every_length_over_several_buffers() {
    carries_every_length(9000, MODES);
}

#[test]
fn more_than_the_rings_hold_in_order_and_past_their_end() {
    for mode in MODES {
        in_namespace(move || {
            veth(9000, 1);
            let (mut a, mut b) = (open("ea", mode), open("eb", mode));
            let mut came = Vec::new();
            let mut sent = 0_u16;
            while sent < 3000 {
                let room = a.transmit_room().min(usize::from(sent % 37) + 1);
                for _ in 0..room.min(usize::from(3000 - sent)) {
                    let mut frame = frame(60 + usize::from(sent) % 5 * 1500, 1);
                    frame[14..16].copy_from_slice(&sent.to_be_bytes());
                    assert!(
                        a.transmit(frame.len(), &mut |slot| slot.copy_from_slice(&frame)).unwrap()
                    );
                    sent += 1;
                }
                a.flush().unwrap();
                b.receive(1000, &mut |frame| came.push((frame[14], frame[15], frame.len())))
                    .unwrap();
            }
            until("all frames", || {
                a.service().unwrap();
                b.receive(1000, &mut |frame| came.push((frame[14], frame[15], frame.len())))
                    .unwrap();
                came.len() >= 3000
            });
            let numbers = came.iter().map(|(high, low, _)| u16::from_be_bytes([*high, *low]));
            assert!(numbers.eq(0..3000), "order");
            assert!(came.iter().zip(0..).all(|((.., len), number)| *len == 60 + number % 5 * 1500));
        });
    }
}

#[test]
fn of_several_queues_over_one_memory() {
    in_namespace(|| {
        veth(1500, 4);
        let mut b = open("eb", Mode::Native);
        assert_eq!(b.manner().queues, 4);
        let mut a = open_packet("ea");
        let frames: Vec<_> = (0..200).map(|seed| frame(100, seed)).collect();
        for frame in &frames {
            send(&mut a, frame);
        }
        let mut came = receive_all(&mut b, 200);
        let mut sent = frames;
        came.sort();
        sent.sort();
        assert_eq!(came, sent);
        send(&mut b, &frame(100, 3));
        assert_eq!(receive_all(&mut a, 1), [frame(100, 3)]);
    });
}

#[test]
fn longer_than_the_interface_takes_are_dropped_and_counted() {
    in_namespace(|| {
        veth(1500, 1);
        let (mut a, mut b) = (open("ea", Mode::Native), open_packet("eb"));
        send(&mut a, &frame(1515, 1));
        let mut tagged = frame(1518, 2);
        tagged[12..14].copy_from_slice(&[0x81, 0x00]);
        send(&mut a, &tagged);
        assert_eq!(receive_all(&mut b, 1), [tagged]);
        assert_eq!(a.counters().tx_drops.get(DropReason::FrameTooLong), 1);
        let refusal = a.transmit(9019, &mut |_| panic!("refused"));
        assert!(matches!(refusal, Err(PortError::FrameTooLong { len: 9019, .. })));
        let refusal = a.transmit(13, &mut |_| panic!("refused"));
        assert!(matches!(refusal, Err(PortError::FrameTooShort { len: 13, .. })));
    });
}

#[test]
fn wake_a_sleeper() {
    for mode in MODES {
        in_namespace(move || {
            veth(1500, 2);
            let (mut a, mut b) = (open("ea", mode), open("eb", mode));
            for number in 0..20 {
                until("rest", || {
                    b.service().unwrap();
                    receive(&mut b);
                    let is_awake = b.arm().unwrap() || sleep_on(&mut b, Duration::from_millis(20));
                    b.disarm();
                    !is_awake
                });
                assert!(!b.arm().unwrap());
                send(&mut a, &frame(100, number));
                assert!(sleep_on(&mut b, PATIENCE));
                b.disarm();
                assert_eq!(receive_all(&mut b, 1), [frame(100, number)]);
            }
        });
    }
}

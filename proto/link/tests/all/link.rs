//! The link in virtual time: one module per rule.

use longhaul_cc::wire_bytes;
use longhaul_link::{Bursts, Cut, DropReason, Link, LinkConfig, LinkError};
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant};

const FRAME_LEN: usize = 4174;

fn gbps(gbps: u64) -> BitRate {
    BitRate::from_gbps(gbps).unwrap()
}

fn link(config: LinkConfig) -> Link {
    Link::new(config).unwrap()
}

/// A frame that carries its number, and may be marked.
fn with_frame(number: u32, len: usize, then: impl FnOnce(&Frame<'_>)) {
    let mut head = [0; 54];
    head[..4].copy_from_slice(&number.to_be_bytes());
    head[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x02]);
    then(&Frame {
        head: &head,
        payload: Payload::Synthetic { len: len - 54 },
        trailer: Trailer::None,
    });
}

fn enter(link: &mut Link, now: Instant, side: Side, number: u32, len: usize) {
    with_frame(number, len, |frame| link.handle_frame(now, side, frame));
}

struct Arrivals {
    now: Instant,
    room: usize,
    /// Time, side, number and length of each frame.
    frames: Vec<(Instant, Side, u32, usize)>,
}

impl Transmit for Arrivals {
    fn room(&mut self, _side: Side) -> usize {
        self.room
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.room -= 1;
        let number = u32::from_be_bytes(frame.head[..4].try_into().unwrap());
        self.frames.push((self.now, side, number, frame.len()));
    }
}

/// Processes the link's deadlines until nothing is in flight.
fn drain(link: &mut Link) -> Vec<(Instant, Side, u32, usize)> {
    let mut out = Arrivals { now: Instant::ZERO, room: usize::MAX, frames: Vec::new() };
    while let Some(deadline) = link.poll_timeout() {
        assert_eq!(deadline.reason, "propagation");
        out.now = deadline.at;
        link.handle_timeout(out.now);
        link.poll_transmit(out.now, &mut out);
    }
    out.frames
}

mod delay {
    use super::*;

    #[test]
    fn a_frame_arrives_one_serialisation_and_one_delay_later() {
        let mut link = link(LinkConfig::fibre_km(1000, gbps(10)));
        let start = Instant::from_ns(17);
        enter(&mut link, start, 0, 1, FRAME_LEN);
        let sent = start + gbps(10).time_for_bytes(wire_bytes(FRAME_LEN));
        assert_eq!(drain(&mut link), [(sent + Duration::from_ms(5), 1, 1, FRAME_LEN)]);
    }

    #[test]
    fn without_a_rate_the_delay_is_all() {
        let mut link = link(LinkConfig { delay: Duration::from_us(3), ..LinkConfig::default() });
        enter(&mut link, Instant::ZERO, 1, 1, FRAME_LEN);
        enter(&mut link, Instant::ZERO, 1, 2, FRAME_LEN);
        let at = Instant::ZERO + Duration::from_us(3);
        assert_eq!(drain(&mut link), [(at, 0, 1, FRAME_LEN), (at, 0, 2, FRAME_LEN)]);
    }

    #[test]
    fn nothing_leaves_early() {
        let mut link = link(LinkConfig { delay: Duration::from_us(3), ..LinkConfig::default() });
        enter(&mut link, Instant::ZERO, 0, 1, FRAME_LEN);
        let mut out = Arrivals { now: Instant::ZERO, room: 9, frames: Vec::new() };
        link.poll_transmit(Instant::from_ps(2_999_999), &mut out);
        assert!(out.frames.is_empty());
        link.poll_transmit(Instant::from_ps(3_000_000), &mut out);
        assert_eq!(out.frames.len(), 1);
    }

    #[test]
    fn directions_do_not_wait_for_each_other() {
        let mut link = link(LinkConfig::fibre_km(10, gbps(1)));
        enter(&mut link, Instant::ZERO, 0, 1, FRAME_LEN);
        enter(&mut link, Instant::ZERO, 1, 2, FRAME_LEN);
        let arrivals = drain(&mut link);
        assert_eq!(arrivals[0].0, arrivals[1].0);
        assert_eq!((arrivals[0].1, arrivals[1].1), (1, 0));
    }
}

mod rate {
    use super::*;

    /// 10,000 frames of varying length, back to back, arrive exactly when the sum of their bits has
    /// passed.
    #[test]
    fn holds_exactly_over_many_frames() {
        for bps in [9_999_999_967, 10_000_000_000, 3_000_000, 800_000_000_000] {
            let rate = BitRate::from_bps(bps).unwrap();
            let mut link = link(LinkConfig {
                delay: Duration::from_us(1),
                rate: Some(rate),
                queue_bytes: 100_000_000,
                memory_bytes_max: 4 << 30,
                ..LinkConfig::default()
            });
            let mut bytes = 0;
            let mut expected = Vec::new();
            for number in 0..10_000_u32 {
                let len = 60 + (number as usize * 37) % 4000;
                enter(&mut link, Instant::ZERO, 0, number, len);
                bytes += wire_bytes(len);
                expected.push((
                    Instant::ZERO + rate.time_for_bytes(bytes) + Duration::from_us(1),
                    1,
                    number,
                    len,
                ));
            }
            assert_eq!(drain(&mut link), expected, "{rate}");
        }
    }

    #[test]
    fn short_frames_take_as_long_as_the_shortest_ethernet_frame() {
        let mut link = link(LinkConfig { rate: Some(gbps(8)), ..LinkConfig::default() });
        enter(&mut link, Instant::ZERO, 0, 1, 54);
        assert_eq!(drain(&mut link)[0].0, Instant::from_ns(84));
    }
}

mod queue {
    use super::*;

    fn with_queue(queue_bytes: u64) -> Link {
        link(LinkConfig { rate: Some(gbps(8)), queue_bytes, ..LinkConfig::default() })
    }

    #[test]
    fn drops_the_frame_that_does_not_fit_and_takes_the_next_that_does() {
        // 1000 bytes on the wire each: one is being sent, two more fit behind it.
        let mut link = with_queue(3000);
        for number in 0..5 {
            enter(&mut link, Instant::ZERO, 0, number, 976);
        }
        assert_eq!(link.counters(0).drops.get(DropReason::QueueFull), 2);
        assert_eq!(link.counters(0).queue_bytes_max, 3000);
        enter(&mut link, Instant::from_ns(999), 0, 5, 976);
        assert_eq!(link.counters(0).drops.get(DropReason::QueueFull), 3);
        enter(&mut link, Instant::from_ns(1000), 0, 6, 976);
        let numbers: Vec<u32> = drain(&mut link).iter().map(|arrival| arrival.2).collect();
        assert_eq!(numbers, [0, 1, 2, 6]);
    }

    #[test]
    fn an_idle_wire_needs_no_queue() {
        let mut link = with_queue(0);
        enter(&mut link, Instant::ZERO, 0, 0, 976);
        enter(&mut link, Instant::from_ns(500), 0, 1, 976);
        enter(&mut link, Instant::from_ns(1000), 0, 2, 976);
        let numbers: Vec<u32> = drain(&mut link).iter().map(|arrival| arrival.2).collect();
        assert_eq!(numbers, [0, 2]);
    }
}

mod loss {
    use super::*;

    fn survivors(seed: u64, side: Side, loss: f64) -> Vec<u32> {
        let mut link = link(LinkConfig { loss, seed, ..LinkConfig::default() });
        for number in 0..100_000 {
            enter(&mut link, Instant::from_ns(u64::from(number)), side, number, 60);
        }
        let lost = link.counters(side).drops.get(DropReason::Loss);
        let arrived: Vec<u32> = drain(&mut link).iter().map(|arrival| arrival.2).collect();
        assert_eq!(arrived.len() as u64 + lost, 100_000);
        arrived
    }

    #[test]
    fn is_near_its_probability() {
        for (loss, expected) in [(1e-2, 850..1150), (1e-4, 1..31), (0.5, 49_000..51_000)] {
            let lost = 100_000 - survivors(1, 0, loss).len();
            assert!(expected.contains(&lost), "{lost} at {loss}");
        }
    }

    #[test]
    fn none_and_all_are_exact() {
        assert_eq!(survivors(1, 0, 0.0).len(), 100_000);
        assert_eq!(survivors(1, 0, 1.0).len(), 0);
    }

    #[test]
    fn the_same_seed_loses_the_same_frames() {
        assert_eq!(survivors(5, 0, 0.01), survivors(5, 0, 0.01));
        assert_ne!(survivors(5, 0, 0.01), survivors(6, 0, 0.01));
    }

    #[test]
    fn each_direction_loses_frames_of_its_own() {
        assert_ne!(survivors(5, 0, 0.01), survivors(5, 1, 0.01));
        // Traffic in the other direction has no effect.
        let mut link = link(LinkConfig { loss: 0.01, seed: 5, ..LinkConfig::default() });
        for number in 0..100_000 {
            enter(&mut link, Instant::from_ns(u64::from(number)), 1, number, 60);
            enter(&mut link, Instant::from_ns(u64::from(number)), 0, number, 60);
        }
        let rightward: Vec<u32> =
            drain(&mut link).iter().filter(|a| a.1 == 1).map(|a| a.2).collect();
        assert_eq!(rightward, survivors(5, 0, 0.01));
    }

    #[test]
    fn a_lost_frame_has_used_the_wire() {
        let mut link = link(LinkConfig {
            rate: Some(gbps(8)),
            loss: 1.0,
            queue_bytes: 1000,
            ..LinkConfig::default()
        });
        enter(&mut link, Instant::ZERO, 0, 0, 976);
        enter(&mut link, Instant::ZERO, 0, 1, 976);
        assert_eq!(link.counters(0).drops.get(DropReason::Loss), 1);
        assert_eq!(link.counters(0).drops.get(DropReason::QueueFull), 1);
    }

    #[test]
    fn a_cut_loses_what_is_sent_in_between_and_nothing_else() {
        let cut = Cut { at: Instant::from_ns(1000), lasts: Duration::from_ns(500), every: None };
        let config =
            LinkConfig { delay: Duration::from_ns(700), cut: Some(cut), ..LinkConfig::default() };
        for side in [0, 1] {
            let mut link = link(config.clone());
            for number in 0..2000 {
                enter(&mut link, Instant::from_ns(u64::from(number)), side, number, 60);
            }
            let arrived: Vec<u32> = drain(&mut link).iter().map(|arrival| arrival.2).collect();
            let expected: Vec<u32> = (0..1000).chain(1500..2000).collect();
            assert_eq!(arrived, expected);
            assert_eq!(link.counters(side).drops.get(DropReason::Cut), 500);
        }
        let again = Cut { every: Some(Duration::from_ns(2000)), ..cut };
        let on: Vec<u64> =
            (0..8000).step_by(250).filter(|&ns| again.is_on(Instant::from_ns(ns))).collect();
        assert_eq!(on, [1000, 1250, 3000, 3250, 5000, 5250, 7000, 7250]);
        let never = Cut { every: Some(Duration::from_ns(500)), ..cut };
        let refused = Link::new(LinkConfig { cut: Some(never), ..LinkConfig::default() });
        assert!(refused.err().unwrap().to_string().contains("longer ones from cut to cut"));
    }

    #[test]
    fn bursts_that_cannot_be_are_refused() {
        let refused = |loss, frames, within| {
            let bursts = Some(Bursts { frames, loss: within });
            Link::new(LinkConfig { loss, bursts, ..LinkConfig::default() })
                .err()
                .unwrap()
                .to_string()
        };
        assert!(refused(0.1, 0.5, 1.0).contains("a mean length from 1"));
        assert!(refused(0.1, f64::NAN, 1.0).contains("NaN"));
        assert!(refused(0.1, 8.0, 0.0).contains("from 0.001 to 1"));
        assert!(refused(0.5, 8.0, 0.5).contains("0.444 is the most"));
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for loss in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = Link::new(LinkConfig { loss, ..LinkConfig::default() }).err().unwrap();
            assert!(matches!(error, LinkError::Loss { .. }), "{error}");
        }
    }
}

mod memory {
    use super::*;

    #[test]
    fn a_distance_beyond_it_is_refused_with_both_numbers_and_the_cure() {
        let config =
            LinkConfig { memory_bytes_max: 64 << 20, ..LinkConfig::fibre_km(10_000, gbps(100)) };
        let error = Link::new(config.clone()).err().unwrap();
        let LinkError::Memory { delay_max, memory_bytes_needed, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(Some(delay_max), config.lossless_delay_max(64 << 20));
        let text = error.to_string();
        assert!(
            text.contains("50 ms") && text.contains("64 MiB") && text.contains("give at least"),
            "{text}"
        );
        let cured = LinkConfig { memory_bytes_max: memory_bytes_needed, ..config };
        assert!(Link::new(cured).is_ok());
    }

    #[test]
    fn the_delay_stated_is_accepted_and_a_microsecond_more_is_not() {
        let config = LinkConfig::fibre_km(0, gbps(40));
        let delay = config.lossless_delay_max(config.memory_bytes_max).unwrap();
        assert!(Link::new(LinkConfig { delay, ..config.clone() }).is_ok());
        assert!(Link::new(LinkConfig { delay: delay + Duration::from_us(1), ..config }).is_err());
    }

    #[test]
    fn ten_thousand_kilometres_of_ten_gigabit_fit_the_default() {
        assert!(Link::new(LinkConfig::fibre_km(10_000, gbps(10))).is_ok());
    }

    /// The most expensive frames, at the rate of the wire, for two delays, in real buffers.
    #[test]
    fn the_costliest_traffic_fits_what_was_promised() {
        let queue_bytes = 100_000;
        let config = LinkConfig { queue_bytes, ..LinkConfig::fibre_km(0, gbps(10)) };
        for payload_len in [1, 257, 1025, 4097] {
            let memory_bytes_max = 8 << 20;
            let delay = config.lossless_delay_max(memory_bytes_max).unwrap();
            let mut link = link(LinkConfig { delay, memory_bytes_max, ..config.clone() });
            let payload = vec![0; payload_len];
            let frame =
                Frame { head: &[0; 59], payload: Payload::Bytes(&payload), trailer: Trailer::None };
            let gap = gbps(10).time_for_bytes(wire_bytes(frame.len()));
            let mut out = Arrivals { now: Instant::ZERO, room: usize::MAX, frames: Vec::new() };
            // A queue's worth at once, then at line rate.
            for _ in 0..queue_bytes / wire_bytes(frame.len()) {
                link.handle_frame(out.now, 0, &frame);
            }
            while out.now < Instant::ZERO + delay.times(2) {
                out.now += gap;
                link.poll_transmit(out.now, &mut out);
                link.handle_frame(out.now, 0, &frame);
            }
            assert_eq!(link.counters(0).drops.total(), 0, "payload {payload_len}");
            assert!(link.counters(0).memory_bytes_max <= memory_bytes_max / 2);
        }
    }

    #[test]
    fn without_a_rate_it_is_enforced_by_dropping() {
        let mut link = link(LinkConfig {
            delay: Duration::from_ms(1),
            memory_bytes_max: 1 << 20,
            ..LinkConfig::default()
        });
        let payload = [0; 4096];
        let frame =
            Frame { head: &[0; 54], payload: Payload::Bytes(&payload), trailer: Trailer::None };
        for _ in 0..1000 {
            link.handle_frame(Instant::ZERO, 0, &frame);
        }
        let counters = link.counters(0);
        assert!(counters.drops.get(DropReason::Memory) > 0);
        assert!(counters.memory_bytes_max <= 1 << 19);
        let delivered = drain(&mut link).len() as u64;
        assert_eq!(delivered + counters.drops.get(DropReason::Memory), 1000);
        assert_eq!(link.counters(0).memory_bytes, 0);
    }

    #[test]
    fn a_frame_longer_than_any_port_delivers_is_dropped() {
        let mut link = link(LinkConfig::default());
        enter(&mut link, Instant::ZERO, 0, 0, 54 + 16_385);
        assert_eq!(link.counters(0).drops.get(DropReason::TooLong), 1);
    }
}

mod room {
    use super::*;

    #[test]
    fn a_due_frame_without_room_waits_and_is_no_deadline() {
        let mut link = link(LinkConfig::default());
        for number in 0..3 {
            enter(&mut link, Instant::ZERO, 0, number, 60);
        }
        let mut out = Arrivals { now: Instant::ZERO, room: 1, frames: Vec::new() };
        link.poll_transmit(out.now, &mut out);
        assert_eq!(out.frames.len(), 1);
        assert_eq!(link.poll_timeout(), None);
        assert_eq!(link.counters(0).in_flight_frames, 2);
        out.room = 5;
        link.poll_transmit(out.now, &mut out);
        assert_eq!(out.frames.iter().map(|frame| frame.2).collect::<Vec<_>>(), [0, 1, 2]);
    }
}

mod bytes {
    use super::*;

    #[test]
    fn arrive_as_they_were_sent_and_are_copied_once_at_most() {
        struct Check(Vec<u8>, bool);
        impl Transmit for Check {
            fn room(&mut self, _side: Side) -> usize {
                1
            }
            fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
                let mut bytes = vec![0; frame.len()];
                frame.write_to(&mut bytes);
                assert!(bytes == self.0);
                assert!(matches!(frame.payload, Payload::Shared(_)));
                self.1 = true;
            }
        }
        let mut link = link(LinkConfig::default());
        let bytes: Vec<u8> = (0..1500_u32).map(|i| (i * 7) as u8).collect();
        link.handle_frame(Instant::ZERO, 0, &Frame::opaque(&bytes));
        let mut check = Check(bytes, false);
        link.poll_transmit(Instant::ZERO, &mut check);
        assert!(check.1);
    }
}

mod marks {
    use super::*;
    use longhaul_cc::RedConfig;
    use longhaul_wire::Ecn;

    const RED: RedConfig = RedConfig { kmin_bytes: 10_000, kmax_bytes: 10_000, pmax: 1.0 };

    /// An IPv4 header with this ToS; the rest of the frame does not matter.
    fn head(tos: u8) -> [u8; 54] {
        let mut head = [0; 54];
        head[12..16].copy_from_slice(&[0x08, 0x00, 0x45, tos]);
        head
    }

    struct Marks(Vec<Ecn>);

    impl Transmit for Marks {
        fn room(&mut self, _: Side) -> usize {
            64
        }
        fn transmit(&mut self, _: Side, frame: &Frame<'_>) {
            self.0.push(Ecn::of(frame.head).unwrap());
        }
    }

    fn enter_all(config: LinkConfig, tos: u8) -> (Link, Vec<Ecn>) {
        let mut link = link(config);
        for _ in 0..6 {
            let frame = Frame {
                head: &head(tos),
                payload: Payload::Synthetic { len: FRAME_LEN - 54 },
                trailer: Trailer::None,
            };
            link.handle_frame(Instant::ZERO, 0, &frame);
        }
        let mut out = Marks(Vec::new());
        while let Some(deadline) = link.poll_timeout() {
            link.poll_transmit(deadline.at, &mut out);
        }
        (link, out.0)
    }

    #[test]
    fn frames_behind_the_threshold_are_marked_when_their_sender_reacts() {
        use Ecn::{Capable, Congested, NotCapable};
        let config = LinkConfig { ecn: Some(RED), ..LinkConfig::fibre_km(10, gbps(10)) };
        // Two frames of 4198 bytes on the wire stay below 10,000; the fourth has three before it.
        let (link, marks) = enter_all(config.clone(), 2);
        assert_eq!(marks, [Capable, Capable, Capable, Congested, Congested, Congested]);
        assert_eq!(link.counters(0).ecn_marked_frames, 3);
        assert_eq!(enter_all(config, 0).1, [NotCapable; 6]);
    }

    #[test]
    fn nothing_is_marked_unless_configured() {
        assert_eq!(enter_all(LinkConfig::fibre_km(10, gbps(10)), 2).1, [Ecn::Capable; 6]);
    }

    #[test]
    fn losses_are_the_same_with_and_without_them() {
        let lossy = LinkConfig { loss: 0.3, seed: 5, ..LinkConfig::fibre_km(10, gbps(10)) };
        let entered = |config: LinkConfig| {
            let mut link = link(config);
            for number in 0..500 {
                enter(&mut link, Instant::ZERO, 0, number, FRAME_LEN);
            }
            drain(&mut link)
        };
        assert_eq!(entered(lossy.clone()), entered(LinkConfig { ecn: Some(RED), ..lossy }));
    }

    #[test]
    fn thresholds_the_wrong_way_round_are_refused() {
        let ecn = Some(RedConfig { kmax_bytes: 9_999, ..RED });
        let made = Link::new(LinkConfig { ecn, ..LinkConfig::default() }).map(drop);
        assert!(matches!(made, Err(LinkError::Ecn { .. })), "{made:?}");
    }
}

mod impairments {
    use super::*;
    use longhaul_link::Impairments;

    const FRAMES: u32 = 20_000;

    /// Sends frames 1 µs apart through a link of 1 ms with these impairments. Returns the arrival
    /// of each frame.
    fn through(impairments: Impairments) -> (Link, Vec<(Instant, Side, u32, usize)>) {
        let mut link = link(LinkConfig {
            delay: Duration::from_ms(1),
            impairments,
            seed: 5,
            ..LinkConfig::default()
        });
        for number in 0..FRAMES {
            enter(&mut link, Instant::from_ns(u64::from(number) * 1000), 0, number, 200);
        }
        let arrived = drain(&mut link);
        let counters = link.counters(0);
        assert_eq!(counters.delivered_frames, counters.entered_frames + counters.duplicated_frames);
        assert_eq!((counters.in_flight_frames, counters.memory_bytes), (0, 0));
        (link, arrived)
    }

    #[test]
    fn late_frames_are_overtaken_by_those_that_come_within_their_delay() {
        let late_by = Duration::from_us(10);
        let (link, arrived) =
            through(Impairments { late: 0.01, late_by, ..Impairments::default() });
        let numbers: Vec<u32> = arrived.iter().map(|frame| frame.2).collect();
        let late: Vec<usize> =
            (1..numbers.len()).filter(|&at| numbers[at] < numbers[at - 1]).collect();
        // About 1 %, each behind the ten that came after it, apart from others that are late.
        assert!(
            (140..=260).contains(&link.counters(0).late_frames),
            "{}",
            link.counters(0).late_frames
        );
        assert!(late.len() > 100);
        for at in late {
            let ahead = numbers[..at].iter().filter(|number| **number > numbers[at]).count();
            assert!((8..=10).contains(&ahead), "{ahead} frames overtook {}", numbers[at]);
        }
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..FRAMES), "each arrives once");
    }

    #[test]
    fn duplicates_arrive_right_behind_their_originals() {
        let (link, arrived) = through(Impairments { duplication: 0.05, ..Impairments::default() });
        let pairs = arrived.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
        assert_eq!(pairs, link.counters(0).duplicated_frames);
        assert!((850..=1150).contains(&pairs), "{pairs}");
    }

    #[test]
    fn one_bit_of_a_corrupted_frame_is_wrong_and_none_of_its_addresses() {
        let mut link = link(LinkConfig {
            impairments: Impairments { corruption: 1.0, ..Impairments::default() },
            ..LinkConfig::default()
        });
        struct Compare(Vec<u8>, usize);
        impl Transmit for Compare {
            fn room(&mut self, _side: Side) -> usize {
                1
            }
            fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
                let mut bytes = vec![0; frame.len()];
                frame.write_to(&mut bytes);
                let differing: Vec<usize> =
                    (0..bytes.len()).filter(|&at| bytes[at] != self.0[at]).collect();
                assert_eq!(differing.len(), 1);
                assert!(differing[0] >= 12);
                assert_eq!((bytes[differing[0]] ^ self.0[differing[0]]).count_ones(), 1);
                self.1 += 1;
            }
        }
        let mut original = Vec::new();
        with_frame(7, 300, |frame| {
            original = vec![0; frame.len()];
            frame.write_to(&mut original);
        });
        let mut out = Compare(original, 0);
        for at in 0..500 {
            let now = Instant::from_ns(at * 1000);
            enter(&mut link, now, 0, 7, 300);
            link.poll_transmit(now, &mut out);
        }
        assert_eq!((out.1, link.counters(0).corrupted_frames), (500, 500));
    }

    #[test]
    fn one_does_not_change_which_frames_another_befalls() {
        let all = Impairments {
            late: 0.01,
            late_by: Duration::from_us(5),
            duplication: 0.02,
            corruption: 0.03,
        };
        let (link, _) = through(all);
        let together = link.counters(0);
        for alone in [
            Impairments { duplication: 0.0, corruption: 0.0, ..all },
            Impairments { late: 0.0, corruption: 0.0, ..all },
            Impairments { late: 0.0, duplication: 0.0, ..all },
        ] {
            let counters = through(alone).0.counters(0);
            assert!(alone.late == 0.0 || counters.late_frames == together.late_frames);
            assert!(
                alone.duplication == 0.0
                    || counters.duplicated_frames == together.duplicated_frames
            );
            assert!(
                alone.corruption == 0.0 || counters.corrupted_frames == together.corrupted_frames
            );
        }
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for (impairments, what) in [
            (Impairments { late: -0.1, ..Impairments::default() }, "late"),
            (Impairments { duplication: 1.5, ..Impairments::default() }, "duplication"),
            (Impairments { corruption: f64::NAN, ..Impairments::default() }, "corruption"),
        ] {
            let refused = Link::new(LinkConfig { impairments, ..LinkConfig::default() }).map(drop);
            assert!(
                matches!(refused, Err(LinkError::Impairment { what: found, .. }) if found == what)
            );
        }
    }

    #[test]
    fn memory_is_counted_for_what_can_be_under_way() {
        let plain = LinkConfig::fibre_km(100, gbps(10));
        let needed = |impairments| {
            LinkConfig { impairments, ..plain.clone() }.memory_bytes_needed().unwrap()
        };
        let without = needed(Impairments::default());
        assert!(
            needed(Impairments { duplication: 0.1, ..Impairments::default() }) > without * 19 / 10
        );
        let late =
            Impairments { late: 0.1, late_by: Duration::from_ms(5), ..Impairments::default() };
        assert!(needed(late) > without);
        let config = LinkConfig { impairments: late, memory_bytes_max: needed(late), ..plain };
        assert!(config.lossless_delay_max(config.memory_bytes_max).unwrap() >= config.delay);
        assert!(Link::new(config).is_ok());
    }
}

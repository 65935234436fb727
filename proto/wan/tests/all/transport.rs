//! Two boxes over fibres with every impairment, in virtual time.

use crate::net::{Net, Source, config};
use longhaul_link::{Impairments, LinkConfig};
use longhaul_node::{Frame, Node};
use longhaul_units::{BitRate, Duration};
use longhaul_wan::{Config, DropReason, INNER, Refusal, Seed, Transport};
use proptest::prelude::*;

fn fibre(gbps: u64, rtt_ms: u64) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_us(rtt_ms * 500),
        rate: BitRate::from_gbps(gbps),
        seed: 3,
        ..LinkConfig::default()
    }
}

/// Streams in both directions, all of which are delivered.
fn transfer(mut net: Net, streams: u32, frames: u64) -> Net {
    net.meet();
    for from in 0..2 {
        let source = |n| Source::new(from, 10 + n, 300 + 500 * n as usize, true, frames);
        net.sources[usize::from(from)] = (0..streams).map(source).collect();
    }
    net.finish(Duration::from_ms(60_000));
    for host in &net.hosts {
        assert_eq!(host.frames, frames * u64::from(streams), "each once");
    }
    net
}

/// Payload delivered by box 1 in `ms` milliseconds after a warm-up, as a share of the fibre's rate.
fn share_of_rate(mut net: Net, gbps: u64, warm_up_ms: u64, ms: u64) -> f64 {
    net.meet();
    net.sources[0] = vec![Source::new(0, 5, 4096, false, u64::MAX)];
    net.run_for(Duration::from_ms(warm_up_ms));
    let before = net.arrived_bytes(4096);
    net.run_for(Duration::from_ms(ms));
    (net.arrived_bytes(4096) - before) as f64 * 8e3 / (ms as f64 * gbps as f64 * 1e9)
}

mod delivery {
    use super::*;

    /// The first frames of a flow pass, because no session is open yet. They reach the host before
    /// the tunnelled ones, although both wait for room in the far box.
    #[test]
    fn frames_that_pass_stay_before_tunnelled_ones() {
        let mut net = Net::of(fibre(10, 2));
        net.hosts[1].room = Some(0);
        let every = Duration::from_us(20);
        net.sources[0] = vec![Source::new(0, 5, 700, true, 400).every(every)];
        net.run_for(Duration::from_ms(20));
        let [near, far] = net.boxes.each_ref().map(Transport::counters);
        assert!(far.passed > 50 && near.tunnelled > 50, "{near:?} {far:?}");
        net.hosts[1].room = None;
        net.finish(Duration::from_ms(100));
        assert_eq!(net.hosts[1].frames, 400);
    }

    /// A frame that is not RoCEv2, as long as a full TCP packet.
    fn other() -> Vec<u8> {
        [&[2; 12], &[0x88, 0xb5][..], &[7; 1500]].concat()
    }

    #[test]
    fn other_frames_and_a_full_session_share_the_rate_by_halves() {
        let mut net = Net::of(fibre(1, 2));
        net.meet();
        net.sources[0] = vec![Source::new(0, 5, 4096, false, u64::MAX)];
        let other = other();
        let offer = |net: &mut Net, ms: u64| {
            for _ in 0..ms {
                // 1.2 Gbit/s, although the full session takes no RDMA.
                for _ in 0..100 {
                    net.boxes[0].handle_frame(net.now, INNER, &Frame::opaque(&other));
                }
                net.run_for(Duration::from_ms(1));
            }
        };
        offer(&mut net, 100);
        assert_eq!(net.boxes[0].intake(INNER), 0, "RDMA is held back");
        let before = (net.hosts[1].others, net.hosts[1].payload_bytes);
        offer(&mut net, 400);
        let others = (net.hosts[1].others - before.0) * (other.len() as u64 + 24);
        let rdma = net.hosts[1].payload_bytes - before.1;
        // Half of 1 Gbit/s for 400 ms, less overheads of RDMA.
        assert!((24_000_000..26_000_000).contains(&others), "{others}");
        assert!((22_500_000..26_000_000).contains(&rdma), "{rdma}");
        assert!(net.boxes[0].counters().drops.get(DropReason::QueueDelay) > 0);
    }

    #[test]
    fn everything_arrives_once_and_in_order_whatever_is_lost() {
        for loss in [0.0, 1e-5, 1e-3, 1e-2, 5e-2] {
            let net = transfer(Net::of(LinkConfig { loss, ..fibre(10, 4) }), 3, 3000);
            let drops = net.boxes[1].counters().drops;
            assert_eq!(
                drops.get(DropReason::NoRoom) + drops.get(DropReason::StoreFull),
                0,
                "{drops:?}"
            );
        }
    }

    #[test]
    fn everything_arrives_although_frames_are_late_repeated_and_damaged() {
        let impairments = Impairments {
            late: 0.02,
            late_by: Duration::from_ms(1),
            duplication: 0.02,
            corruption: 0.02,
        };
        let net =
            transfer(Net::of(LinkConfig { impairments, loss: 0.01, ..fibre(10, 4) }), 3, 3000);
        let counters = net.boxes[1].counters();
        assert!(counters.drops.get(DropReason::Corrupted) > 50, "{counters:?}");
        assert!(counters.replayed > 50, "{counters:?}");
    }

    #[test]
    fn everything_arrives_over_two_paths_of_different_length() {
        let config = |id| config(id, 2, BitRate::from_gbps(10));
        let fibres = vec![fibre(10, 4), LinkConfig { loss: 0.01, seed: 9, ..fibre(10, 9) }];
        let net = transfer(Net::new([config(1), config(2)], fibres), 3, 4000);
        let session = net.boxes[0].sessions().next().unwrap();
        assert!(session.paths.iter().all(|path| path.sent > 4000), "{:?}", session.paths);
    }

    #[test]
    fn a_frame_that_was_damaged_before_does_not_stop_its_stream() {
        let mut net = Net::of(fibre(10, 2));
        net.meet();
        let mut source = Source::new(0, 10, 500, true, 10);
        net.hosts[1].is_strict = false;
        source.send_broken(|frame| net.boxes[0].handle_frame(net.now, INNER, frame));
        net.sources[0] = vec![source];
        net.finish(Duration::from_ms(500));
        assert_eq!(net.hosts[1].frames, 9);
        assert_eq!(net.boxes[0].counters().void, 1);
    }

    /// The first HELLO is damaged in a field that its answer's cookie depends on.
    #[test]
    fn although_the_first_question_is_damaged() {
        let impairments =
            Impairments { corruption: 0.045563582636900433, ..Impairments::default() };
        let delay = Duration::from_us(20);
        transfer(
            Net::of(LinkConfig { impairments, delay, seed: 3878786528335224514, ..fibre(10, 1) }),
            1,
            400,
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 24,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn on_any_path(
            seed in any::<u64>(),
            loss in 0.0..0.1_f64,
            late in 0.0..0.1_f64,
            late_us in 1..3000_u64,
            duplication in 0.0..0.1_f64,
            corruption in 0.0..0.05_f64,
            rtt_us in 20..8000_u64,
            streams in 1..5_u32,
        ) {
            let late_by = Duration::from_us(late_us);
            let impairments = Impairments { late, late_by, duplication, corruption };
            let delay = Duration::from_us(rtt_us);
            transfer(
                Net::of(LinkConfig { loss, impairments, delay, seed, ..fibre(10, 1) }),
                streams,
                400,
            );
        }
    }
}

mod goodput {
    use super::*;

    #[test]
    fn loss_costs_little() {
        for (loss, least) in [(0.0, 0.95), (1e-4, 0.95), (1e-3, 0.94), (1e-2, 0.90), (5e-2, 0.75)] {
            let share = share_of_rate(Net::of(LinkConfig { loss, ..fibre(10, 10) }), 10, 60, 150);
            assert!(share > least, "{loss}: {share}");
        }
    }

    #[test]
    fn jitter_of_a_millisecond_costs_less_than_two_per_cent() {
        let late =
            Impairments { late: 0.05, late_by: Duration::from_ms(1), ..Impairments::default() };
        let [clean, jittery] = [Impairments::default(), late].map(|impairments| {
            share_of_rate(Net::of(LinkConfig { impairments, ..fibre(10, 10) }), 10, 60, 150)
        });
        assert!(jittery > 0.98 * clean, "{jittery} of {clean}");
    }

    #[test]
    fn memory_stays_within_its_bounds() {
        let fibre = LinkConfig { loss: 0.02, ..fibre(10, 10) };
        let bdp = 12_500_000;
        let boxes = [1, 2].map(|id| Config {
            send_bytes_max: 2 * bdp,
            receive_bytes_max: bdp * 5 / 2,
            ..config(id, 1, fibre.rate)
        });
        let mut net = Net::new(boxes, vec![fibre]);
        net.meet();
        net.sources[0] = (0..8).map(|n| Source::new(0, n, 4096, false, u64::MAX)).collect();
        net.run_for(Duration::from_ms(300));
        let near = net.boxes[0].sessions().next().unwrap();
        let far = net.boxes[1].sessions().next().unwrap();
        assert!(near.send_bytes_peak <= 2 * bdp, "{near:?}");
        assert!(far.receive_bytes_peak <= bdp * 5 / 2, "{far:?}");
        assert_eq!(net.boxes[1].counters().drops.get(DropReason::NoRoom), 0);
        assert_eq!(net.boxes[0].counters().drops.total(), 0);
    }

    #[test]
    fn a_far_host_that_takes_nothing_stops_the_sender_and_loses_nothing() {
        let fibre = fibre(10, 2);
        let small = |id| Config { receive_bytes_max: 1 << 20, ..config(id, 1, fibre.rate) };
        let mut net = Net::new([small(1), small(2)], vec![fibre.clone()]);
        net.meet();
        net.sources[0] = vec![Source::new(0, 5, 4096, false, 5000)];
        net.hosts[1].room = Some(0);
        net.run_for(Duration::from_ms(200));
        assert_eq!(net.hosts[1].frames, 0);
        let far = net.boxes[1].sessions().next().unwrap();
        assert!(far.receive_bytes <= 1 << 20, "{far:?}");
        net.hosts[1].room = None;
        net.finish(Duration::from_ms(1000));
        assert_eq!(net.hosts[1].frames, 5000);
    }
}

mod paths {
    use super::*;

    fn two_paths() -> Net {
        let config = |id| config(id, 2, BitRate::from_gbps(10));
        let second = LinkConfig { seed: 9, ..fibre(10, 10) };
        let mut net = Net::new([config(1), config(2)], vec![fibre(10, 10), second]);
        net.meet();
        net.sources[0] = vec![Source::new(0, 5, 4096, false, u64::MAX)];
        net.run_for(Duration::from_ms(100));
        net
    }

    #[test]
    fn a_cut_path_is_left_within_50_ms_and_nothing_is_lost() {
        for both_ways in [false, true] {
            let mut net = two_paths();
            let rate_of = |net: &mut Net, ms: u64| {
                let before = net.hosts[1].payload_bytes;
                net.run_for(Duration::from_ms(ms));
                (net.hosts[1].payload_bytes - before) as f64 * 8.0 / (ms as f64 * 1e6)
            };
            assert!(rate_of(&mut net, 50) > 18.5);
            net.is_cut[0] = [true, both_ways];
            net.run_for(Duration::from_ms(50));
            let one = rate_of(&mut net, 50);
            assert!(one > 9.3, "{one} Gbit/s of the survivor's 10");
            net.is_cut[0] = [false; 2];
            net.run_for(Duration::from_ms(50));
            assert!(rate_of(&mut net, 50) > 18.5, "the path is used again");
        }
    }

    #[test]
    fn what_is_not_tunnelled_goes_by_a_path_that_is_up() {
        for cut in [0, 1] {
            let mut net = two_paths();
            net.is_cut[cut] = [true; 2];
            net.run_for(Duration::from_ms(100));
            let before = net.hosts[1].others;
            for _ in 0..10 {
                net.boxes[0].handle_frame(net.now, INNER, &Frame::opaque(&[0xff; 60]));
            }
            net.run_for(Duration::from_ms(50));
            assert_eq!(net.hosts[1].others, before + 10, "path {cut} is cut");
        }
    }

    #[test]
    fn a_session_outlives_a_cut_of_its_only_path() {
        let mut net = Net::of(fibre(10, 2));
        net.meet();
        net.sources[0] = vec![Source::new(0, 5, 4096, false, 20_000)];
        net.run_for(Duration::from_ms(10));
        net.is_cut[0] = [true; 2];
        net.run_for(Duration::from_ms(700));
        net.is_cut[0] = [false; 2];
        net.finish(Duration::from_ms(500));
        assert_eq!(net.hosts[1].frames, 20_000);
    }

    /// Losses of a stream that begins while its path is down count as the path's.
    #[test]
    fn a_stream_that_begins_during_a_cut_is_carried_after_it() {
        let mut net = Net::of(LinkConfig { delay: Duration::from_us(50), ..fibre(10, 2) });
        net.meet();
        net.is_cut[0] = [true; 2];
        net.sources[0] = vec![Source::new(0, 5, 8, true, 1)];
        net.run_for(Duration::from_ms(700));
        net.is_cut[0] = [false; 2];
        net.finish(Duration::from_ms(500));
        assert_eq!(net.boxes[0].counters().streams_astray, 0);
    }

    #[test]
    fn without_any_path_the_session_ends_and_traffic_passes() {
        let mut net = Net::of(fibre(10, 2));
        net.meet();
        net.is_cut[0] = [true; 2];
        net.run_for(Duration::from_ms(5000));
        assert!(net.boxes.iter().all(|b| b.sessions().count() == 0), "both have given up");
        let passed = net.boxes[0].counters().passed;
        net.sources[0] = vec![Source::new(0, 5, 4096, true, 10)];
        net.run_for(Duration::from_ms(20));
        assert_eq!(net.boxes[0].counters().passed, passed + 10);
    }
}

mod sessions {
    use super::*;

    #[test]
    fn hosts_at_both_ends_that_begin_at_once_make_one_session() {
        let mut net = Net::of(fibre(10, 2));
        for from in 0..2 {
            net.sources[usize::from(from)] = vec![Source::new(from, 5, 100, true, 1)];
        }
        net.run_for(Duration::from_ms(600));
        for node in &net.boxes {
            assert_eq!(node.counters().sessions_opened, 1);
            assert_eq!(node.sessions().filter(|session| session.is_open).count(), 1);
        }
        for source in net.sources.iter_mut().flatten() {
            source.until = 1000;
        }
        net.finish(Duration::from_ms(1000));
    }

    #[test]
    fn a_lost_request_to_open_one_costs_round_trips() {
        const HELLO_LEN: usize = 42 + 24 + 64;
        const OPEN: u8 = 3;
        let mut net = Net::of(fibre(10, 10));
        let mut lost = 0;
        net.loses = Some(Box::new(move |_, frame| {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            let is_first = lost == 0 && bytes.len() == HELLO_LEN && bytes[42 + 24] == OPEN;
            lost += u32::from(is_first);
            is_first
        }));
        net.sources[0] = vec![Source::new(0, 5, 100, true, 1)];
        // One to detect it, two until the retransmission, and one for that.
        net.run_for(Duration::from_ms(39));
        let is_open = |net: &Net| net.boxes[0].sessions().any(|session| session.is_open);
        assert!(!is_open(&net), "it was lost");
        net.run_for(Duration::from_ms(2));
        assert!(is_open(&net));
    }

    #[test]
    fn a_far_box_that_restarts_is_found_again() {
        for restarted in 0..2 {
            let mut net = Net::of(fibre(10, 2));
            net.meet();
            net.sources[0] = vec![Source::new(0, 5, 1000, true, u64::MAX)];
            net.run_for(Duration::from_ms(20));
            net.hosts[1].is_strict = false;
            let again =
                Config { seed: Seed::of_scenario(77), ..net.boxes[restarted].config().clone() };
            net.boxes[restarted] = Transport::new(again).unwrap();
            // Frames that pass while there is no session must not use up numbers, so hosts pause.
            net.sources[0].clear();
            net.run_for(Duration::from_ms(200));
            let tunnelled = |net: &Net| net.boxes[1].counters().delivered;
            let before = tunnelled(&net);
            net.hosts[1].next.clear();
            for qpn in [6, 7, 8] {
                net.sources[0] = vec![Source::new(0, qpn, 1000, true, 100)];
                net.run_for(Duration::from_ms(300));
            }
            assert!(tunnelled(&net) >= before + 200, "{}", tunnelled(&net));
            assert!(net.boxes.iter().all(|node| node.sessions().count() == 1));
            assert_eq!(net.hosts[1].next[&8], 100);
        }
    }

    #[test]
    fn another_policy_is_refused_by_name_and_traffic_passes() {
        let fibre = fibre(10, 2);
        let boxes = [1, 2].map(|id| Config { policy: id, ..config(id, 1, fibre.rate) });
        let mut net = Net::new(boxes, vec![fibre]);
        net.sources[0] = vec![Source::new(0, 5, 1000, true, 100)];
        net.finish(Duration::from_ms(100));
        net.run_for(Duration::from_ms(20));
        assert_eq!(net.boxes[0].counters().passed, 100);
        for (node, far) in [(0, 2), (1, 1)] {
            let refused = net.boxes[node].refused().unwrap();
            assert_eq!(
                (refused.reason, refused.box_id, refused.policy),
                (Refusal::Policy, far, far)
            );
            assert_eq!(net.boxes[node].sessions().count(), 0);
        }
    }

    #[test]
    fn another_number_of_cores_is_refused_by_name_and_traffic_passes() {
        let fibre = fibre(10, 2);
        let boxes = [1, 2].map(|id| Config { cores: id as u8, ..config(id, 1, fibre.rate) });
        for (from, far) in [(0, 1), (1, 0)] {
            let mut net = Net::new(boxes.clone(), vec![fibre.clone()]);
            net.sources[from] = vec![Source::new(0, 5, 1000, true, 100)];
            net.finish(Duration::from_ms(100));
            net.run_for(Duration::from_ms(20));
            assert_eq!(net.boxes[from].counters().passed, 100);
            for (node, other) in [(from, far), (far, from)] {
                let refused = net.boxes[node].refused().unwrap();
                assert_eq!(
                    (refused.reason, refused.box_id, refused.cores),
                    (Refusal::Cores, other as u64 + 1, other as u8 + 1)
                );
                assert_eq!(net.boxes[node].counters().refused_cores, 1);
                assert_eq!(net.boxes[node].sessions().count(), 0);
            }
        }
    }

    #[test]
    fn a_close_ends_both_ends() {
        let mut net = Net::of(fibre(10, 2));
        net.meet();
        let (now, passed) = (net.now, net.boxes[0].counters().passed);
        net.boxes[0].close(now);
        net.run_for(Duration::from_ms(10));
        assert!(net.boxes.iter().all(|node| node.sessions().count() == 0));
        net.sources[0] = vec![Source::new(0, 5, 1000, true, 100)];
        net.finish(Duration::from_ms(100));
        assert_eq!(net.boxes[0].counters().passed, passed + 100);
    }

    #[test]
    fn idle_streams_end_and_their_places_are_used_again() {
        let fibre = LinkConfig { loss: 0.05, ..fibre(10, 2) };
        let boxes = [1, 2].map(|id| Config {
            streams_max: 4,
            stream_idle: Duration::from_ms(100),
            ..config(id, 1, fibre.rate)
        });
        let mut net = Net::new(boxes, vec![fibre]);
        net.meet();
        for round in 0..6 {
            net.run_for(Duration::from_ms(300));
            let open = |net: &Net, end: usize| {
                let session = net.boxes[end].sessions().next().unwrap();
                if end == 0 { session.streams_out } else { session.streams_in }
            };
            assert_eq!((open(&net, 0), open(&net, 1)), (0, 0), "round {round}");
            net.sources[0] =
                (0..4).map(|n| Source::new(0, 10 * round + n, 1000, true, 50)).collect();
            net.finish(Duration::from_ms(500));
        }
        assert_eq!(net.boxes[0].counters().stream_table_full, 0);
    }

    #[test]
    fn streams_beyond_the_table_pass() {
        let fibre = fibre(10, 2);
        let boxes = [1, 2].map(|id| Config { streams_max: 4, ..config(id, 1, fibre.rate) });
        let mut net = Net::new(boxes, vec![fibre]);
        net.meet();
        net.sources[0] = (0..8).map(|n| Source::new(0, n, 1000, true, 50)).collect();
        net.finish(Duration::from_ms(500));
        assert!(net.boxes[0].counters().stream_table_full > 0);
    }
}

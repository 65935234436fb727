//! Tests of single turns.

use longhaul_host::{MalformedFrames, TurnConfig, turn};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::Node;
use longhaul_port::{
    Descriptors, LinkState, LoopbackPort, Port, PortError, forward_port, loopback,
};
use longhaul_units::{Duration, Instant};

const NOW: Instant = Instant::from_ns(1);

fn link() -> Link {
    Link::new(LinkConfig::default()).unwrap()
}

/// The outer ends, and the inner ends that a node is driven over.
fn ports(slots: usize, frame_bytes_max: usize) -> (LoopbackPort, LoopbackPort, Vec<LoopbackPort>) {
    let (a, inner_a) = loopback::pair("a", slots, frame_bytes_max).unwrap();
    let (b, inner_b) = loopback::pair("b", slots, frame_bytes_max).unwrap();
    (a, b, vec![inner_a, inner_b])
}

fn send(port: &mut LoopbackPort, frame: &[u8]) {
    assert!(port.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
    port.flush().unwrap();
}

fn received(port: &mut LoopbackPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(usize::MAX, &mut |frame| frames.push(frame.to_vec())).unwrap();
    frames
}

fn no_errors(side: usize, error: PortError) {
    panic!("port {side}: {error}");
}

/// An IPv4 packet to the RoCEv2 port that ends before its BTH.
fn truncated_roce() -> Vec<u8> {
    let mut frame = vec![0; 42];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&28_u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[36..38].copy_from_slice(&4791_u16.to_be_bytes());
    frame[38..40].copy_from_slice(&8_u16.to_be_bytes());
    frame
}

mod frames {
    use super::*;

    #[test]
    fn pass_from_port_to_port_byte_for_byte_and_in_order() {
        let (mut a, mut b, mut inner) = ports(64, 2000);
        let sent: Vec<Vec<u8>> = (0..40_u8)
            .map(|number| (0..60 + 40 * number as usize).map(|at| number ^ at as u8).collect())
            .collect();
        for frame in &sent {
            send(&mut a, frame);
        }
        send(&mut b, &[9; 60]);
        let done = turn(&mut link(), &mut inner, &|| NOW, &TurnConfig::default(), &mut no_errors);
        assert_eq!((done.received, done.transmitted, done.refused), (41, 41, 0));
        assert!(done.is_busy() && !done.is_blocked);
        assert_eq!(received(&mut b), sent);
        assert_eq!(received(&mut a), [[9; 60]]);
    }

    #[test]
    fn are_taken_a_batch_at_a_time() {
        let (mut a, _b, mut inner) = ports(64, 100);
        for _ in 0..10 {
            send(&mut a, &[0; 60]);
        }
        let config = TurnConfig { receive_batch: 4, ..TurnConfig::default() };
        let mut link = link();
        let batches =
            [0; 4].map(|_| turn(&mut link, &mut inner, &|| NOW, &config, &mut no_errors).received);
        assert_eq!(batches, [4, 4, 2, 0]);
    }

    #[test]
    fn wait_in_the_node_while_a_port_has_no_room() {
        let (mut a, mut b, mut inner) = ports(4, 100);
        let mut link = link();
        let mut total = 0;
        for _ in 0..3 {
            for _ in 0..4 {
                send(&mut a, &[0; 60]);
            }
            let done = turn(&mut link, &mut inner, &|| NOW, &TurnConfig::default(), &mut no_errors);
            total += done.transmitted;
            assert_eq!(done.refused, 0);
        }
        assert_eq!(total, 4);
        let done = turn(&mut link, &mut inner, &|| NOW, &TurnConfig::default(), &mut no_errors);
        assert!(done.is_blocked && !done.is_busy());
        assert_eq!(done.deadline, None, "room is no deadline");
        assert_eq!(received(&mut b).len(), 4);
        turn(&mut link, &mut inner, &|| NOW, &TurnConfig::default(), &mut no_errors);
        assert_eq!(received(&mut b).len(), 4);
    }

    #[test]
    fn too_long_for_the_other_port_are_refused_and_reported() {
        let (mut a, inner_a) = loopback::pair("a", 4, 2000).unwrap();
        let (mut b, inner_b) = loopback::pair("b", 4, 100).unwrap();
        send(&mut a, &[0; 1000]);
        send(&mut a, &[0; 60]);
        let mut errors = Vec::new();
        let done = turn(
            &mut link(),
            &mut [inner_a, inner_b],
            &|| NOW,
            &TurnConfig::default(),
            &mut |side, error| {
                errors.push((side, error.to_string()));
            },
        );
        assert_eq!((done.refused, done.transmitted), (1, 1));
        assert!(
            errors.len() == 1 && errors[0].0 == 1 && errors[0].1.contains("1000"),
            "{errors:?}"
        );
        assert_eq!(received(&mut b).len(), 1);
    }
}

mod malformed_frames {
    use super::*;

    fn carried(malformed: MalformedFrames) -> (usize, Vec<Vec<u8>>) {
        let (mut a, mut b, mut inner) = ports(4, 100);
        send(&mut a, &truncated_roce());
        let config = TurnConfig { malformed, ..TurnConfig::default() };
        let done = turn(&mut link(), &mut inner, &|| NOW, &config, &mut no_errors);
        (done.malformed, received(&mut b))
    }

    #[test]
    fn are_dropped_and_counted_where_packets_end() {
        assert_eq!(carried(MalformedFrames::Drop), (1, vec![]));
    }

    #[test]
    fn are_carried_and_counted_where_asked_for() {
        assert_eq!(carried(MalformedFrames::Carry), (1, vec![truncated_roce()]));
    }
}

mod deadlines {
    use super::*;

    /// The clock must be read when the frames were found, neither before nor after.
    #[test]
    fn count_from_when_a_frame_was_found() {
        let (mut a, _b, mut inner) = ports(4, 100);
        let mut link =
            Link::new(LinkConfig { delay: Duration::from_us(5), ..LinkConfig::default() }).unwrap();
        for _ in 0..3 {
            send(&mut a, &[0; 60]);
        }
        let readings = std::cell::Cell::new(0);
        let clock = || {
            readings.set(readings.get() + 1);
            Instant::from_ns(100 * readings.get())
        };
        let done = turn(&mut link, &mut inner, &clock, &TurnConfig::default(), &mut no_errors);
        assert_eq!(done.deadline.unwrap().at, Instant::from_ns(5100));
        assert_eq!((done.now, readings.get()), (Instant::from_ns(200), 2));
    }

    #[test]
    fn are_met_when_due_and_tell_how_late() {
        let (mut a, mut b, mut inner) = ports(4, 100);
        let mut link =
            Link::new(LinkConfig { delay: Duration::from_us(5), ..LinkConfig::default() }).unwrap();
        send(&mut a, &[0; 60]);
        let done = turn(
            &mut link,
            &mut inner,
            &|| Instant::from_ns(0),
            &TurnConfig::default(),
            &mut no_errors,
        );
        let deadline = done.deadline.unwrap();
        assert_eq!((deadline.at, deadline.reason), (Instant::from_ns(5000), "propagation"));
        assert_eq!(done.lateness, None);
        let early = turn(
            &mut link,
            &mut inner,
            &|| Instant::from_ns(4999),
            &TurnConfig::default(),
            &mut no_errors,
        );
        assert!(!early.is_busy());
        let late = turn(
            &mut link,
            &mut inner,
            &|| Instant::from_ns(5700),
            &TurnConfig::default(),
            &mut no_errors,
        );
        assert_eq!(late.lateness, Some(Duration::from_ns(700)));
        assert_eq!(received(&mut b).len(), 1);
        assert_eq!(link.poll_timeout(), None);
    }
}

mod port_errors {
    use super::*;

    /// Hands out one frame, and an error with each call.
    struct Broken(LoopbackPort);

    fn violation() -> PortError {
        PortError::PeerViolation { port: "broken".into(), detail: "test".into() }
    }

    impl Port for Broken {
        fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
            self.0.receive(max, each)?;
            Err(violation())
        }
        fn flush(&mut self) -> Result<(), PortError> {
            self.0.flush()?;
            Err(violation())
        }
        fn arm(&mut self) -> Result<bool, PortError> {
            Err(violation())
        }
        fn disarm(&mut self) {}
        fn descriptors(&self) -> Descriptors {
            Descriptors::new()
        }
        fn service(&mut self) -> Result<LinkState, PortError> {
            Err(violation())
        }
        fn link_state(&self) -> LinkState {
            LinkState::Down
        }

        forward_port!(|self| self.0 => transmit_room, transmit, capabilities, counters);
    }

    #[test]
    fn stop_neither_the_port_itself_nor_the_others() {
        let (mut a, mut b, inner) = ports(4, 100);
        let mut inner: Vec<Broken> = inner.into_iter().map(Broken).collect();
        send(&mut a, &[1; 60]);
        send(&mut b, &[2; 60]);
        let mut errors = Vec::new();
        let done =
            turn(&mut link(), &mut inner, &|| NOW, &TurnConfig::default(), &mut |side, _| {
                errors.push(side)
            });
        assert_eq!((done.received, done.transmitted), (2, 2));
        assert_eq!((received(&mut a), received(&mut b)), (vec![vec![2; 60]], vec![vec![1; 60]]));
        assert_eq!(errors, [0, 0, 1, 1, 0, 1], "service and receive of each, then flush of each");
    }
}

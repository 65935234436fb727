//! Limits on the memory that unknown peers can occupy, and robustness against random bytes.

use super::pair::{A, DATAGRAMS, PORT, Pair, config, ip, request, sidr_request};
use crate::*;
use longhaul_units::{Duration, Instant, Qpn, Rng, SplitMix64};
use longhaul_wire::mad::{Attribute, Header, MAD_LEN, Message, Req, SidrReq};

fn small(side: usize) -> Config {
    Config {
        connections_max: 64,
        half_open_max: 16,
        backlog_default: 8,
        listeners_max: 4,
        sidr_max: 32,
        replies_max: 10,
        ..config(side)
    }
}

/// A valid REQ with other numbers.
fn req(comm_id: u32, qpn: u32, service_id: u64) -> Mad {
    let mut cm = ConnectionManager::new(config(1));
    cm.connect(Instant::ZERO, &ConnectRequest { service_id, ..request(1, qpn) }).unwrap();
    let mut mad = [0; MAD_LEN];
    cm.poll_mad(Instant::ZERO, |_, m| mad = *m);
    let mut out = [0; MAD_LEN];
    let (_, Message::Req(r)) = Message::read(&mad).unwrap() else { panic!() };
    Message::Req(Req { local_comm_id: comm_id, ..r })
        .write(&Header::new(u64::from(comm_id)), &mut out);
    out
}

#[test]
fn a_listener_keeps_no_more_than_its_backlog() {
    let mut cm = ConnectionManager::new(small(A));
    cm.listen(PORT, 3).unwrap();
    let now = Instant::from_ns(1);
    for n in 1..100 {
        let expected = if n <= 3 { None } else { Some(DropReason::BacklogFull) };
        assert_eq!(cm.handle_mad(now, ip(1), &req(n, n, PORT)), expected);
    }
    // A decision makes room for one request.
    let Some(Event::ConnectRequest { connection, .. }) = cm.poll_event() else { panic!() };
    cm.reject(now, connection, RejectReason::CONSUMER, &[]).unwrap();
    assert_eq!(cm.handle_mad(now, ip(1), &req(200, 200, PORT)), None);
    assert_eq!(cm.handle_mad(now, ip(1), &req(201, 201, PORT)), Some(DropReason::BacklogFull));
}

#[test]
fn half_open_connections_are_bounded_over_all_listeners_and_time_out() {
    let mut cm = ConnectionManager::new(small(A));
    let mut now = Instant::from_ns(1);
    for n in 0..4 {
        cm.listen(PORT + n, 8).unwrap();
    }
    assert_eq!(cm.listen(PORT + 4, 8), Err(ListenError::TooMany(4)));
    for n in 0..1000u32 {
        cm.handle_mad(now, ip(1), &req(n + 1, n + 1, PORT + u64::from(n % 4)));
    }
    assert_eq!(cm.connections().count(), 16);
    assert_eq!(cm.counters().drops.get(DropReason::TableFull), 1000 - 16);
    // Nobody decides. The program has seen none of them, so it gets no events.
    now += config(A).decision_timeout;
    cm.handle_timeout(now);
    assert_eq!((cm.tables.half_open(), cm.poll_event()), (0, None));
    now += Duration::from_ms(5000);
    cm.handle_timeout(now);
    assert_eq!(cm.connections().count(), 0);
    assert_eq!(cm.tables.index_sizes(), [0; 4]);
}

#[test]
fn our_own_connections_are_bounded() {
    let mut cm = ConnectionManager::new(small(A));
    let now = Instant::from_ns(1);
    for n in 0..64 {
        cm.connect(now, &request(A, n + 1)).unwrap();
    }
    assert_eq!(cm.connect(now, &request(A, 100)), Err(ConnectError::TooMany(64)));
    let mut sent = 0;
    while cm.poll_mad(now, |_, _| sent += 1) {}
    assert_eq!(sent, 64);
}

#[test]
fn answers_to_strangers_are_bounded() {
    let mut cm = ConnectionManager::new(small(A));
    let now = Instant::from_ns(1);
    for n in 1..100 {
        assert_eq!(cm.handle_mad(now, ip(1), &req(n, n, PORT)), Some(DropReason::NoListener));
    }
    let mut sent = 0;
    while cm.poll_mad(now, |_, _| sent += 1) {}
    assert_eq!((sent, cm.counters().replies_dropped), (10, 89));
    assert_eq!(cm.handle_mad(now, ip(1), &req(1, 1, PORT)), Some(DropReason::NoListener));
    assert!(cm.has_mad());
}

#[test]
fn refused_requests_do_not_crowd_out_the_living() {
    let mut cm = ConnectionManager::new(small(A));
    cm.listen(PORT, 8).unwrap();
    let now = Instant::from_ns(1);
    for n in 1..500 {
        assert_eq!(cm.handle_mad(now, ip(1), &req(n, n, PORT)), None, "{n}");
        let Some(Event::ConnectRequest { connection, .. }) = cm.poll_event() else { panic!() };
        cm.reject(now, connection, RejectReason::CONSUMER, &[]).unwrap();
        assert!(cm.poll_mad(now, |_, _| ()));
    }
    assert!(cm.connections().count() <= 33);
}

#[test]
fn a_peer_cannot_make_us_repeat_ourselves_quickly() {
    let mut cm = ConnectionManager::new(config(A));
    cm.listen(PORT, 0).unwrap();
    let now = Instant::from_ns(1);
    let mad = req(5, 5, PORT);
    let (header, Message::Req(r)) = Message::read(&mad).unwrap() else { panic!() };
    let mut hasty = [0; MAD_LEN];
    Message::Req(Req { local_response_timeout: 0, ..r }).write(&header, &mut hasty);
    assert_eq!(cm.handle_mad(now, ip(1), &hasty), None);
    let Some(Event::ConnectRequest { connection, .. }) = cm.poll_event() else { panic!() };
    cm.accept(now, connection, &super::pair::answer(9)).unwrap();
    assert!(cm.poll_timeout().unwrap().at.since(now) > Duration::from_ms(1));
}

fn sidr_req(request_id: u32, service_id: u64) -> Mad {
    let mut mad = [0; MAD_LEN];
    Message::SidrReq(SidrReq { request_id, pkey: 0xffff, service_id, private_data: b"?" })
        .write(&Header::new(u64::from(request_id)), &mut mad);
    mad
}

#[test]
fn requests_for_datagram_services_are_bounded_by_backlog_and_table_and_time_out() {
    let mut cm = ConnectionManager::new(small(A));
    let mut now = Instant::from_ns(1);
    for n in 0..4 {
        cm.listen(DATAGRAMS + n, 6).unwrap();
    }
    for n in 1..=6 {
        assert_eq!(cm.handle_mad(now, ip(1), &sidr_req(n, DATAGRAMS)), None);
    }
    assert_eq!(cm.handle_mad(now, ip(1), &sidr_req(7, DATAGRAMS)), Some(DropReason::BacklogFull));
    for n in 8..1000 {
        cm.handle_mad(now, ip(1), &sidr_req(n, DATAGRAMS + u64::from(n % 3) + 1));
    }
    assert_eq!((cm.sidr_count(), cm.resolutions.undecided()), (16, 16));
    assert!(cm.counters().drops.get(DropReason::TableFull) > 900);
    // Room for our own requests is left.
    for _ in 0..16 {
        cm.sidr_request(now, &sidr_request(A)).unwrap();
    }
    assert_eq!(cm.sidr_request(now, &sidr_request(A)), Err(ConnectError::TooMany(32)));
    // Nobody decides. The program has seen one of them.
    let Some(Event::SidrRequest { id, .. }) = cm.poll_event() else { panic!() };
    now += config(A).decision_timeout;
    while cm.poll_timeout().is_some_and(|d| d.at <= now) {
        while cm.poll_mad(now, |_, _| ()) {}
        cm.handle_timeout(now);
    }
    let told = cm.poll_event();
    assert_eq!(told, Some(Event::SidrUnreachable { id, waited: Waited::ForDecision }));
    assert_eq!((cm.poll_event(), cm.resolutions.undecided()), (None, 0));
    assert!(cm.listeners.values().all(|l| l.undecided == 0));
}

#[test]
fn what_was_answered_makes_room_for_what_is_asked() {
    let mut cm = ConnectionManager::new(small(A));
    cm.listen(DATAGRAMS, 0).unwrap();
    let now = Instant::from_ns(1);
    for n in 1..500 {
        assert_eq!(cm.handle_mad(now, ip(1), &sidr_req(n, DATAGRAMS)), None, "{n}");
        let Some(Event::SidrRequest { id, .. }) = cm.poll_event() else { panic!() };
        cm.sidr_accept(now, id, Qpn::new(n), 1, &[]).unwrap();
        assert!(cm.poll_mad(now, |_, _| ()));
        assert!(cm.sidr_count() <= 32);
    }
    // The latest answers are remembered.
    assert_eq!(cm.handle_mad(now, ip(1), &sidr_req(499, DATAGRAMS)), Some(DropReason::Duplicate));
    assert!(cm.poll_mad(now, |_, _| ()) && cm.poll_event().is_none());
    cm.handle_timeout(now + config(A).sidr_memory);
    assert_eq!(
        (cm.sidr_count(), cm.resolutions.index_sizes(), cm.poll_timeout()),
        (0, [0; 4], None)
    );
}

fn pair_qpn(round: u32) -> u32 {
    0x1000 + round
}

/// Random and mutated MADs in every state: no panic, and time and `destroy` remove all their
/// traces.
#[test]
fn hostile_mads_never_panic_and_leave_nothing_behind() {
    let mut rng = SplitMix64::new(99);
    let mut pair = Pair::with(5, super::pair::Network::perfect(1), small);
    for side in [0, 1] {
        pair.cm[side].listen(PORT, 0).unwrap();
        pair.cm[side].listen(DATAGRAMS, 0).unwrap();
    }
    let mut seen: Vec<Mad> = vec![req(1, 1, PORT), sidr_req(1, DATAGRAMS)];
    let mut asked = [Vec::new(), Vec::new()];
    for round in 0..20_000u32 {
        let mut mad = seen[rng.below(seen.len() as u64) as usize];
        for _ in 0..rng.below(4) {
            let at = 16 + rng.below(100) as usize;
            mad[at] = rng.next_u64() as u8;
        }
        if rng.chance(0.5) {
            mad[16..18].copy_from_slice(&(0x10 + rng.below(11) as u16).to_be_bytes());
        }
        // Make it refer to an existing connection.
        let side = rng.below(2) as usize;
        let target = pair.cm[side].connections().nth(rng.below(8) as usize);
        if let Some(c) = target.filter(|_| rng.chance(0.7)) {
            mad[24..28].copy_from_slice(&c.peer_comm_id.to_be_bytes());
            mad[28..32].copy_from_slice(&c.connection.comm_id().to_be_bytes());
            mad[32..35].copy_from_slice(&c.local_qpn.get().to_be_bytes()[1..]);
        }
        if mad[17] == Attribute::SidrRep as u8 && rng.chance(0.7) {
            let id: &SidrId = asked[side].last().unwrap_or(&SidrId(1));
            mad[24..28].copy_from_slice(&id.comm_id().to_be_bytes());
        }
        pair.cm[side].handle_mad(pair.now, ip(1 - side), &mad);
        if round % 7 == 0 && pair.cm[side].connections().count() < 50 {
            pair.connect(side);
        }
        if round % 5 == 0
            && let Ok(id) = pair.cm[side].sidr_request(pair.now, &sidr_request(side))
        {
            asked[side].push(id);
        }
        pair.cm[side].poll_mad(pair.now, |_, m| {
            if seen.len() < 200 {
                seen.push(*m);
            }
        });
        let cm = &mut pair.cm[side];
        let qpn = pair_qpn(round);
        match cm.poll_event() {
            // Late answers refer to connections that have ended.
            Some(Event::ConnectRequest { connection, .. }) if rng.chance(0.8) => {
                let _ = cm.accept(pair.now, connection, &super::pair::answer(qpn));
            }
            Some(Event::ConnectResponse { connection, .. }) => {
                let _ = cm.ready_to_use(pair.now, connection);
            }
            Some(Event::Established { connection }) if rng.chance(0.1) => {
                let _ = cm.disconnect(pair.now, connection);
            }
            Some(Event::SidrRequest { id, .. }) => {
                let _ = match rng.below(4) {
                    0 => cm.sidr_destroy(pair.now, id),
                    1 => cm.sidr_reject(pair.now, id, SidrStatus::NoQp, b"none"),
                    _ => cm.sidr_accept(pair.now, id, Qpn::new(qpn), 1, b"here"),
                };
            }
            _ => {}
        }
        if round % 50 == 0 {
            pair.now += Duration::from_ms(100);
            for cm in &mut pair.cm {
                cm.handle_timeout(pair.now);
            }
        }
        assert!(pair.cm[side].connections().count() <= 64);
        assert!(pair.cm[side].tables.half_open() <= 16);
        assert!(pair.cm[side].sidr_count() <= 32 && pair.cm[side].resolutions.undecided() <= 16);
    }
    for side in [0, 1] {
        for c in pair.cm[side].connections().collect::<Vec<_>>() {
            let _ = pair.cm[side].destroy(pair.now, c.connection);
        }
        let cm = &mut pair.cm[side];
        for id in &asked[side] {
            let _ = cm.sidr_destroy(pair.now, *id);
        }
        // Requests whose event the program has not polled.
        while let Some(event) = cm.poll_event() {
            if let Event::SidrRequest { id, .. } = event {
                cm.sidr_destroy(pair.now, id).unwrap();
            }
        }
        while cm.poll_timeout().is_some() || cm.has_mad() {
            while cm.poll_mad(pair.now, |_, _| ()) {}
            pair.now = cm.poll_timeout().map_or(pair.now, |d| d.at);
            cm.handle_timeout(pair.now);
        }
        while let Some(event) = cm.poll_event() {
            assert!(matches!(event, Event::SidrUnreachable { .. }), "{event:?}");
        }
        assert_eq!((cm.connections().count(), cm.sidr_count()), (0, 0));
        assert_eq!(cm.tables.index_sizes(), [0; 4]);
        assert_eq!(cm.resolutions.index_sizes(), [0; 4]);
        assert!(cm.listeners.values().all(|l| l.undecided == 0));
        assert!(
            cm.counters().resolved > 0 && cm.counters().received_by.get(Attribute::SidrRep) > 100
        );
        assert!(cm.counters().received_by.get(Attribute::Dreq) > 100);
        assert!(cm.counters().established > 0 && cm.counters().disconnected > 0);
    }
}

/// A connection's memory stays within the bound that the configuration documents.
#[test]
fn a_connection_takes_300_bytes_and_550_while_it_waits_for_an_answer() {
    let connection = size_of::<crate::connection::Connection>();
    // Keys and values of four indexes and a timer, in trees two thirds full.
    let indexes = (12 + 28 + 28 + 8 + 16) * 3 / 2;
    assert!(connection + indexes <= 300, "{connection}");
    assert!(connection + indexes + MAD_LEN <= 550, "{connection}");
    // Events wait in a queue, so large ones are boxed.
    assert!(size_of::<Event>() <= 240, "{}", size_of::<Event>());
    let request = size_of::<crate::sidr::Resolution>();
    assert!(request + MAD_LEN + (12 + 28 + 16 + 16) * 3 / 2 <= 500, "{request}");
}

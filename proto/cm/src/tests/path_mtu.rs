//! Two ends with different path MTUs.

use super::pair::{A, B, Network, PORT, Pair, config, ip, request};
use crate::*;
use longhaul_units::Duration;
use longhaul_wire::mad::{
    Attribute, Header, MAD_LEN, Mad, Message, MessageRejected, Rej, RejectReason,
};

/// B accepts path MTUs up to this code.
fn pair_with(path_mtu_code_max: u8, network: Network) -> Pair {
    let mut pair = Pair::new(7, network);
    pair.cm[B] = ConnectionManager::new(Config { path_mtu_code_max, ..config(B) });
    pair.cm[B].listen(PORT, 0).unwrap();
    pair
}

/// The path MTUs reported to both programs.
fn told(pair: &Pair) -> [Vec<u8>; 2] {
    let mut told = [Vec::new(), Vec::new()];
    for (side, event) in &pair.log {
        match event {
            Event::ConnectRequest { info, .. } => told[*side].push(info.path_mtu_code),
            Event::ConnectResponse { info, .. } => told[*side].push(info.path_mtu_code),
            _ => {}
        }
    }
    told
}

fn rejection(connection: ConnectionId, info: &[u8]) -> Mad {
    let mut mad = [0; MAD_LEN];
    let rej = Rej {
        local_comm_id: 0,
        remote_comm_id: connection.comm_id(),
        rejected: MessageRejected::Req,
        reason: RejectReason::INVALID_PATH_MTU,
        info_len: info.len() as u8,
        info,
        private_data: &[],
    };
    Message::Rej(rej).write(&Header::new(1), &mut mad);
    mad
}

#[test]
fn the_smaller_one_is_agreed_on() {
    for (smaller, sends) in [(5, 1), (3, 2), (1, 2)] {
        let mut pair = pair_with(smaller, Network::perfect(5));
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(100));
        assert_eq!(pair.state(A, id), Some(ConnectionState::Established));
        assert_eq!(told(&pair), [vec![smaller], vec![smaller]]);
        assert_eq!(pair.cm[A].counters().sent_by.get(Attribute::Req), sends);
    }
}

#[test]
fn copies_of_the_rejection_do_not_end_the_second_attempt() {
    for seed in 0..50 {
        let jitter = Duration::from_ms(20);
        let network = Network { jitter, duplication: 0.9, loss: 0.2, ..Network::perfect(5) };
        let mut pair = pair_with(3, network);
        pair.rng = longhaul_units::SplitMix64::new(seed);
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(3000));
        assert_eq!(pair.state(A, id), Some(ConnectionState::Established), "seed {seed}");
        assert_eq!(told(&pair), [[3], [3]]);
    }
}

#[test]
fn no_larger_one_is_asked_for_than_our_own() {
    let mut pair = pair_with(5, Network::perfect(5));
    pair.cm[A] = ConnectionManager::new(Config { path_mtu_code_max: 2, ..config(A) });
    pair.connect(A);
    pair.run_for(Duration::from_ms(100));
    assert_eq!(told(&pair), [[2], [2]]);
}

#[test]
fn a_rejection_that_names_none_that_helps_is_told_to_the_program() {
    for info in [&[][..], &[0], &[5], &[6], &[255]] {
        let mut cm = ConnectionManager::new(config(A));
        let now = longhaul_units::Instant::from_ns(1);
        let connection = cm.connect(now, &request(A, 7)).unwrap();
        assert_eq!(cm.handle_mad(now, ip(B), &rejection(connection, info)), None);
        let event = cm.poll_event();
        assert!(matches!(
            event,
            Some(Event::Rejected { reason: RejectReason::INVALID_PATH_MTU, .. })
        ));
    }
}

//! Connections that the RDMA connection manager makes, and ends when the program that asked for
//! them is done.
//!
//! Each end tells the other in its private data where its memory is, as storage targets do. What a
//! host's kernel takes for a connection is not modelled: MADs are answered when they have come.

use super::{Nic, Peer, Program, READS_SERVED, RNR_RETRIES, Terms};
use longhaul_cm::{
    Accept, ConnectRequest, ConnectionId, DisconnectCause, Event as Cm, ListenId, RdmaCmHeader,
    RejectReason, ReplyInfo, RequestInfo, ServiceId, Transport, Waited,
};
use longhaul_rnic::{Event, Mtu, QpAttr, QpState, VerbsError};
use longhaul_units::{Duration, Instant, Psn, RKey};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A QP that is to be connected, and the PSN that the peer begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub slot: usize,
    pub peer_psn: Psn,
}

/// How long the connections of a program took, each from the program's call to its QP being ready
/// to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetupTimes {
    pub sum: Duration,
    pub max: Duration,
}

/// A program that asks for connections.
pub(crate) struct Caller {
    pub program: usize,
    pub qps: Vec<Waiting>,
    pub to: IpAddr,
    pub port: u16,
    pub mtu: Mtu,
    pub starts_at: Instant,
}

/// A program that is asked.
pub(crate) struct Service {
    pub qps: Vec<Waiting>,
    pub port: u16,
}

/// How far a caller is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has not begun.
    Waiting,
    /// Not all of its QPs are connected.
    Connecting,
    /// Its program runs.
    Running,
    /// Its program is done, and not all connections have ended.
    Disconnecting,
    Over,
}

struct Call {
    caller: Caller,
    stage: Stage,
    /// Connections that there are or will be.
    open: usize,
    connected: usize,
    times: SetupTimes,
    failure: Option<String>,
}

/// Which end of a connection is here.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Of this call, with this of its QPs.
    Caller(usize, usize),
    /// The QP in this slot.
    Service(usize),
}

/// All connections of a host that the connection manager knows.
#[derive(Default)]
pub(crate) struct Connections {
    /// In the order of their programs.
    calls: Vec<Call>,
    services: BTreeMap<ListenId, Service>,
    ends: BTreeMap<ConnectionId, End>,
}

impl Connections {
    /// Takes a caller in; its program is a later one than those of all before.
    pub fn call(&mut self, caller: Caller) {
        let open = caller.qps.len();
        let times = SetupTimes::default();
        self.calls.push(Call {
            caller,
            stage: Stage::Waiting,
            open,
            connected: 0,
            times,
            failure: None,
        });
    }

    /// Listens for a service.
    pub fn listen(&mut self, service: Service, nic: &mut Nic) -> Result<(), VerbsError> {
        let listening = nic.rnic.cm().listen(ServiceId::tcp(service.port), service.qps.len());
        let listening =
            listening.map_err(|_| VerbsError::Invalid("no room for another listener"))?;
        self.services.insert(listening, service);
        Ok(())
    }

    fn call_of(&self, program: usize) -> Option<&Call> {
        let at = self.calls.binary_search_by_key(&program, |call| call.caller.program).ok()?;
        Some(&self.calls[at])
    }

    /// Whether the connections of a program have ended, by success or failure; `None` when it asked
    /// for none.
    pub fn is_over(&self, program: usize) -> Option<bool> {
        self.call_of(program).map(|call| call.stage == Stage::Over)
    }

    /// Why a program's connections could not be, or did not last.
    pub fn failure(&self, program: usize) -> Option<&str> {
        self.call_of(program)?.failure.as_deref()
    }

    /// How long a program's connections took, once all have been made: sum and longest, and how
    /// many.
    pub fn setup_times(&self, program: usize) -> Option<(SetupTimes, usize)> {
        let call = self.call_of(program)?;
        (call.connected == call.caller.qps.len()).then_some((call.times, call.connected))
    }

    /// When the next caller begins.
    pub fn next_at(&self) -> Option<Instant> {
        let waiting = self.calls.iter().filter(|call| call.stage == Stage::Waiting);
        waiting.map(|call| call.caller.starts_at).min()
    }

    /// Begins calls, and does what the connection manager says.
    pub fn run(&mut self, now: Instant, nic: &mut Nic, programs: &mut [Program]) {
        for number in 0..self.calls.len() {
            let call = &self.calls[number];
            if call.stage == Stage::Waiting && call.caller.starts_at <= now {
                self.begin(now, number, nic);
            }
        }
        while let Some(event) = nic.rnic.poll_event() {
            if let Event::Cm(event) = event {
                self.handle(now, event, nic, programs);
            }
        }
    }

    /// Ends the connections of programs that are done.
    pub fn end(&mut self, now: Instant, nic: &mut Nic, programs: &[Program]) {
        for number in 0..self.calls.len() {
            let call = &mut self.calls[number];
            if call.stage == Stage::Running && programs[call.caller.program].is_done() {
                call.stage = if call.open == 0 { Stage::Over } else { Stage::Disconnecting };
                for id in self.ids_of(number) {
                    // Not to the error state: nobody asks for what would be flushed.
                    self.move_qp(now, id, QpState::Reset, nic);
                    // It is established, or has ended already.
                    let _ = nic.rnic.cm().disconnect(now, id);
                }
            }
        }
    }

    fn ids_of(&self, call: usize) -> Vec<ConnectionId> {
        let of_call = |end: &End| matches!(end, End::Caller(number, _) if *number == call);
        self.ends.iter().filter(|(_, end)| of_call(end)).map(|(id, _)| *id).collect()
    }

    fn begin(&mut self, now: Instant, number: usize, nic: &mut Nic) {
        self.calls[number].stage = Stage::Connecting;
        for index in 0..self.calls[number].caller.qps.len() {
            let asked = request(now, &self.calls[number].caller, index, nic);
            match asked {
                Ok(id) => {
                    self.ends.insert(id, End::Caller(number, index));
                }
                Err(why) => return self.fail(now, number, why, nic),
            }
        }
    }

    fn handle(&mut self, now: Instant, event: Cm, nic: &mut Nic, programs: &mut [Program]) {
        let id = event.connection();
        if let Cm::ConnectRequest { listen, info, .. } = &event {
            return self.accept(now, *listen, id, info, nic);
        }
        let Some(&end) = self.ends.get(&id) else { return };
        let end_of_call = match end {
            End::Caller(number, index) => Some((number, index)),
            End::Service(_) => None,
        };
        match (event, end_of_call) {
            (Cm::ConnectResponse { info, .. }, Some((number, index))) => {
                self.complete(now, (number, index), id, &info, nic, programs);
            }
            (Cm::Rejected { reason, .. }, Some((number, _))) => {
                self.ends.remove(&id);
                self.fail(
                    now,
                    number,
                    format!("the responder rejected the request: {reason}"),
                    nic,
                );
            }
            (Cm::Unreachable { waited, .. }, Some((number, _))) => {
                self.ends.remove(&id);
                let requests = u64::from(nic.rnic.cm().config().retries_max) + 1;
                let seconds = now.since(self.calls[number].caller.starts_at).as_secs_f64();
                let why = match waited {
                    Waited::ForReply => format!("no answer to {requests} REQs in {seconds:.0} s"),
                    waited => format!("the peer did not answer in time: {waited:?}"),
                };
                self.fail(now, number, why, nic);
            }
            (Cm::Disconnected { cause, .. }, Some((number, _))) => {
                self.ended(now, number, id, cause, nic)
            }
            (Cm::Disconnected { .. } | Cm::Rejected { .. } | Cm::Unreachable { .. }, None) => {
                self.move_qp(now, id, QpState::Error, nic);
                self.ends.remove(&id);
            }
            _ => {}
        }
    }

    /// The responder: takes the QP that the requester asks for by its number, and tells where its
    /// memory is.
    fn accept(
        &mut self,
        now: Instant,
        listen: ListenId,
        id: ConnectionId,
        info: &RequestInfo,
        nic: &mut Nic,
    ) {
        let asked = self.services.get(&listen).zip(Offer::read(info.user_data()));
        let asked = asked
            .and_then(|(service, offer)| Some((*service.qps.get(offer.index as usize)?, offer)));
        let made = asked.and_then(|(Waiting { slot, peer_psn }, offer)| {
            let peer = Peer {
                ip: info.peer_ip,
                qpn: info.peer_qpn,
                address: offer.address,
                rkey: offer.rkey,
            };
            let terms = Terms {
                mtu: Mtu::from_code(info.path_mtu_code)?,
                first_psn: info.peer_psn,
                peer_psn,
                timeout: info.local_ack_timeout,
                retry_count: info.retry_count,
                reads: nic.profile.outstanding_reads.min(info.initiator_depth),
            };
            nic.make_ready(now, slot, &peer, &terms).ok()?;
            let own = nic.offer(slot, offer.index).write();
            let accept = Accept {
                local_qpn: nic.qps[slot].qpn,
                starting_psn: peer_psn,
                responder_resources: READS_SERVED.min(info.responder_resources),
                initiator_depth: terms.reads,
                flow_control: false,
                rnr_retry_count: RNR_RETRIES,
                srq: false,
                private_data: &own,
            };
            nic.rnic.cm().accept(now, id, &accept).ok()?;
            Some(slot)
        });
        match made {
            Some(slot) => {
                self.ends.insert(id, End::Service(slot));
            }
            None => {
                // What is just asked for can be refused.
                let _ = nic.rnic.cm().reject(now, id, RejectReason::CONSUMER, &[]);
            }
        }
    }

    /// The requester: its QP gets ready, and with the last one its program begins.
    fn complete(
        &mut self,
        now: Instant,
        (number, index): (usize, usize),
        id: ConnectionId,
        info: &ReplyInfo,
        nic: &mut Nic,
        programs: &mut [Program],
    ) {
        let call = &mut self.calls[number];
        let Waiting { slot, peer_psn } = call.caller.qps[index];
        let made = Offer::read(info.private_data.as_slice()).and_then(|offer| {
            let peer = Peer {
                ip: info.peer_ip,
                qpn: info.peer_qpn,
                address: offer.address,
                rkey: offer.rkey,
            };
            let own = nic.terms(call.caller.mtu, [info.peer_psn, peer_psn]);
            let terms = Terms {
                mtu: Mtu::from_code(info.path_mtu_code)?,
                reads: own.reads.min(info.initiator_depth),
                ..own
            };
            nic.make_ready(now, slot, &peer, &terms).ok()?;
            nic.rnic.cm().ready_to_use(now, id).ok()
        });
        if made.is_none() {
            return self.fail(now, number, "the responder's REP makes no sense".to_owned(), nic);
        }
        let took = now.since(call.caller.starts_at);
        call.times.sum = call.times.sum + took;
        call.times.max = call.times.max.max(took);
        call.connected += 1;
        if call.connected == call.caller.qps.len() {
            call.stage = Stage::Running;
            let slots = call.caller.qps.iter().map(|qp| qp.slot).collect();
            programs[call.caller.program].start(now, slots, nic);
        }
    }

    /// A connection of a call is over, by whomever.
    fn ended(
        &mut self,
        now: Instant,
        number: usize,
        id: ConnectionId,
        cause: DisconnectCause,
        nic: &mut Nic,
    ) {
        self.move_qp(now, id, QpState::Error, nic);
        self.ends.remove(&id);
        let call = &mut self.calls[number];
        call.open -= 1;
        if call.stage != Stage::Disconnecting {
            let why = format!("the connection ended before the program did: {cause:?}");
            self.fail(now, number, why, nic);
        } else if call.open == 0 {
            call.stage = Stage::Over;
        }
    }

    /// Gives all connections of a call up.
    fn fail(&mut self, now: Instant, number: usize, why: String, nic: &mut Nic) {
        let call = &mut self.calls[number];
        let (connected, qps) = (call.connected, call.caller.qps.len());
        call.stage = Stage::Over;
        call.failure.get_or_insert_with(|| match connected == qps {
            true => why,
            false => format!("{connected} of {qps} QPs were connected: {why}"),
        });
        for id in self.ids_of(number) {
            self.move_qp(now, id, QpState::Error, nic);
            self.ends.remove(&id);
            // Known, as all that are in the table.
            let _ = nic.rnic.cm().destroy(now, id);
        }
    }

    /// Takes a connection's QP out of service.
    fn move_qp(&mut self, now: Instant, id: ConnectionId, state: QpState, nic: &mut Nic) {
        let slot = match self.ends.get(&id) {
            Some(&End::Caller(number, index)) => self.calls[number].caller.qps[index].slot,
            Some(&End::Service(slot)) => slot,
            None => return,
        };
        // Refused where it has been reset before.
        let _ = nic.rnic.modify_qp(now, nic.qps[slot].qpn, &QpAttr::to(state));
    }
}

fn request(
    now: Instant,
    caller: &Caller,
    index: usize,
    nic: &mut Nic,
) -> Result<ConnectionId, String> {
    let Waiting { slot, peer_psn } = caller.qps[index];
    let source = nic.rnic.config().ip;
    let header = RdmaCmHeader { source_port: 0, source, destination: caller.to };
    let offer = nic.offer(slot, index as u32).write();
    let private_data = header.with_user_data(&offer).ok_or("the private data do not fit")?;
    let request = ConnectRequest {
        destination_ip: caller.to,
        source_ip: source,
        service_id: ServiceId::tcp(caller.port),
        transport: Transport::Rc,
        local_qpn: nic.qps[slot].qpn,
        starting_psn: peer_psn,
        responder_resources: READS_SERVED,
        initiator_depth: nic.profile.outstanding_reads,
        flow_control: false,
        retry_count: nic.profile.retry_count,
        rnr_retry_count: RNR_RETRIES,
        path_mtu_code: caller.mtu.code(),
        local_ack_timeout: nic.profile.timeout_code,
        srq: false,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        private_data: &private_data,
    };
    nic.rnic.cm().connect(now, &request).map_err(|why| why.to_string())
}

/// What an end tells the other in its private data: the number of the QP among those of the flow,
/// and where its memory is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub index: u32,
    pub rkey: RKey,
    pub address: u64,
}

impl Offer {
    const LEN: usize = 16;

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.index.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.address.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let address = u64::from(word(8)?) << 32 | u64::from(word(12)?);
        Some(Offer { index: word(0)?, rkey: RKey(word(4)?), address })
    }
}

//! The WAN accelerator: a transparent box near a requester that answers it at LAN latency.
//!
//! An [`Accelerator`] is a [`longhaul_node::Node`] with two sides, [`LAN`] and [`WAN`]. It stores
//! the requests of RC connections whose requester is on its LAN side, acknowledges them
//! (pseudo-ACK) and takes over their delivery to the responder beyond the WAN: it absorbs the
//! responder's ACKs, sequence NAKs and RNR NAKs, and retransmits from its store. It passes
//! everything else through, including requests from the WAN. One box at each end therefore serves
//! both directions at once, and a single box serves its own side.
//!
//! **Lifecycle of a flow.** The accelerator learns a flow from the connection manager's REQ and
//! REP, or from traffic: it remembers requests as they pass, and two ACKs that fit exactly one flow
//! pair the directions and give the MSN. The flow is then terminated. A DREQ waits until the store
//! is delivered, and the DREP ends the flow. A new REQ, or PSNs that do not fit, restart it.
//!
//! **Meaning of a completion.** It is the flow's [`Mode`], which a [`Policy`] chooses when the flow
//! is learnt: `early` (this box has the message), `far` (the box near the responder has it), `tail`
//! or `off` (the responder has it). In `tail` the accelerator pseudo-ACKs all but the last packet
//! of each message; it also follows and reports flows that pass through by their mode. If the
//! responder refuses acknowledged packets, or asks for packets that have been released, the flow
//! fails with a fatal NAK and stays failed; data behind a failure is never delivered. A flow whose
//! responder is silent passes. A box that loses its memory loses the packets that it had
//! acknowledged: the responder then misses PSNs, so the connection breaks and no data is skipped.
//!
//! **Pairs.** The box near the responder is an [`Accelerator`] in [`Role::Far`] with its sides
//! swapped: it stores and pseudo-ACKs the requests that arrive from the WAN, and delivers them over
//! the responder's LAN. The near box treats these pseudo-ACKs as the responder's ACKs. Each box
//! works without the other.
//!
//! **Draining.** A draining accelerator ([`Accelerator::set_draining`]) accepts no new flows and
//! acknowledges nothing further early. A flow passes once it owes nothing, and its connection
//! continues without the box.
//!
//! **Patience of requesters.** Only the responder can answer a READ, an atomic or a keep-alive,
//! after everything stored before it. The requester has a budget (perftest: eight timeouts of 67
//! ms), which only an acknowledgement restores. The accelerator therefore limits how far the
//! requester runs ahead to the bytes that the responder takes in about 32 ms or two round trips, at
//! the measured pace: many on a clean path, few under loss, where go-back-N delivers the packets
//! between two losses per round trip. While it withholds pseudo-ACKs for this reason, it
//! acknowledges a few packets every [`Config::ack_hold_max`]. A requester that waits for an
//! acknowledgement while the responder is not ready receives RNR NAKs, so that its own RNR retry
//! counter decides how long it waits.
//!
//! **Tenants.** Tenants, which are prefixes of requesters' addresses, share the memory; a tenant
//! that needs more than an equal share gets the memory that the others leave
//! ([`Accelerator::tenants`]). The accelerator acknowledges nothing further for a tenant above its
//! share, and never evicts acknowledged packets.
//!
//! **Congestion.** The accelerator forwards CNPs to the requester and obeys them: it limits the
//! flow's rate towards the responder by DCQCN, so that the store does not drain at full rate into a
//! congested network. A far box also has a window, which each loss halves, because between it and
//! the responder packets are lost to congestion only.
//!
//! **Tags.** RoCEv2 behind one 802.1Q tag is accelerated like untagged RoCEv2, and the VLAN is part
//! of a flow's key. Frames behind two tags, or behind a tag of another type (802.1ad), pass
//! through.
//!
//! **Limits.** The accelerator does not repair loss beyond go-back-N, sends no CNPs of its own and
//! never reorders. It changes no frame that it forwards, with two exceptions: it sets AckReq in a
//! packet that it retransmits to ask the responder which PSN it expects, and it clears ECE, by
//! which NICs agree on vendor features, in REQ and REP ([`EceMode`]).
//!
//! **Advice.** What a flow reveals about a wrong setting of a host or its LAN is told once per pair
//! of hosts ([`Accelerator::advice`]).
#![forbid(unsafe_code)]

mod accelerator;
mod advice;
mod alternate_path;
mod answer;
mod bookkeeping;
mod candidates;
mod config;
mod connections;
mod counters;
mod departures;
mod drain;
mod ece;
mod entries;
mod flow;
mod index;
mod key;
mod lives;
mod management;
mod output;
mod pairing;
mod policy;
pub mod promise;
mod question;
mod shared;
mod shares;
mod status;
mod store;
mod table;
mod timers;
mod trace;

pub use accelerator::{Accelerator, LAN, WAN};
pub use advice::{Advice, Advised};
pub use config::{Config, ConfigError, EceMode, UnknownEceMode};
pub use counters::{Counters, DropReason, Drops};
pub use key::FlowKey;
pub use longhaul_cc::{JointRate, Pacing};
pub use longhaul_wire::Prefix;
pub use policy::{Mode, Policy, PolicyError, RULES_MAX, Role, Rule};
pub use shares::TenantStatus;
pub use status::{FlowCounters, FlowState, FlowStatus, Learnt, PassReason};

//! The WAN accelerator: a transparent box near a requester that answers it at LAN latency.
//!
//! An [`Accelerator`] is a [`longhaul_node::Node`] with two sides, [`LAN`] and [`WAN`]. It watches
//! the requests of RC connections whose requester is on its LAN side, stores them, acknowledges
//! them (pseudo-ACK) and takes over their delivery to the responder beyond the WAN: it absorbs the
//! responder's ACKs, sequence and RNR NAKs and retransmits from its store. Everything else,
//! requests from the WAN included, passes untouched, so that one box at each end serves both
//! directions at once and one box alone serves its own side.
//!
//! **Lifecycle of a flow.** Learnt from the connection manager's REQ and REP, or from traffic:
//! requests are remembered as they pass, and two ACKs that fit exactly one flow pair the directions
//! and give the MSN. From then on the flow is terminated. A DREQ waits for the store, the DREP ends
//! the flow; a new REQ, or PSNs that do not fit, start it afresh.
//!
//! **What a completion means.** That is the flow's [`Mode`], which a [`Policy`] chooses when the
//! flow is learnt: `early` (this box has it), `far` (the box near the responder has it), `tail` or
//! `off` (the responder has it). In `tail` everything but the last packet of each message is
//! pseudo-ACKed; what passes untouched by its mode is watched and shown. When the responder refuses
//! what was acknowledged, or asks for what nobody has any more, the flow fails with a fatal NAK and
//! stays failed; data behind a failure is never delivered. A flow whose responder is silent passes.
//! A box that loses its memory loses what it had acknowledged: the responder then misses PSNs, so
//! that the connection breaks instead of skipping data.
//!
//! **Pairs.** The box near the responder is an [`Accelerator`] too, in [`Role::Far`] and turned
//! round: requests that come out of the WAN are stored, pseudo-ACKed and delivered over the
//! responder's LAN. The near one takes these pseudo-ACKs for the responder's, and either works with
//! the other gone.
//!
//! **Draining.** An accelerator that is to go takes in no more flows and acknowledges nothing
//! further early ([`Accelerator::set_draining`]); a flow that is owed nothing any more passes, and
//! the connection lives on without the box.
//!
//! **Patience of requesters.** A READ, an atomic and a keep-alive are answered by the responder
//! alone, after everything stored before them. Their requester has a budget, perftest's is eight
//! timeouts of 67 ms, and only an acknowledgement refills it. So the requester is let run ahead of
//! the responder by no more than the responder takes in about 32 ms or two round trips, at the
//! measured pace: much on a clean path, little under loss, where go-back-N delivers one stretch
//! between two losses per round trip. While a pseudo-ACK is withheld for that, a few packets are
//! acknowledged every [`Config::ack_hold_max`]. A requester that waits for an acknowledgement while
//! the responder is not ready gets RNR NAKs itself, so that its RNR retry counter decides how long
//! it waits.
//!
//! **Tenants.** Memory is shared by tenants, which are prefixes of requesters' addresses: one that
//! needs more than an equal share has what the others leave ([`Accelerator::tenants`]). A tenant
//! above its share is acknowledged nothing further; nothing that was acknowledged is evicted.
//!
//! **Congestion.** CNPs are passed to their requester, and heeded: the flow slows down towards the
//! responder as DCQCN has it, so that what is stored does not go on at full rate into a congested
//! network. A far box, between which and the responder nothing but congestion loses packets, has a
//! window besides, which each loss halves.
//!
//! **Tags.** RoCEv2 behind one 802.1Q tag is accelerated like untagged; a flow is told from others
//! by its VLAN too. Behind two tags or one of another type (802.1ad) it passes untouched.
//!
//! **What it does not do.** It does not repair loss beyond go-back-N, sends no CNPs of its own,
//! never reorders, and does not change a frame that it forwards, except for the AckReq bit of a
//! packet that it resends to ask the responder how far it is.
#![forbid(unsafe_code)]

mod accelerator;
mod alternate_path;
mod answer;
mod bookkeeping;
mod candidates;
mod config;
mod connections;
mod counters;
mod drain;
mod dreqs;
mod entries;
mod flow;
mod index;
mod key;
mod lives;
mod management;
mod output;
mod pairing;
mod policy;
mod question;
mod shared;
mod shares;
mod status;
mod store;
mod table;
mod timers;
mod trace;

pub use accelerator::{Accelerator, LAN, WAN};
pub use config::{Config, ConfigError};
pub use counters::{Counters, DropReason, Drops};
pub use key::FlowKey;
pub use longhaul_cc::{JointRate, Pacing};
pub use longhaul_wire::Prefix;
pub use policy::{Mode, Policy, PolicyError, RULES_MAX, Role, Rule};
pub use shares::TenantStatus;
pub use status::{FlowCounters, FlowState, FlowStatus, Learnt, PassReason};

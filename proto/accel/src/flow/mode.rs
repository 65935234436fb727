//! The mode of one flow, and the resulting duty of the box.

use crate::policy::Duty;
use crate::{Config, FlowKey, Mode};

/// The policy's decision on a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowMode {
    mode: Mode,
    duty: Duty,
    /// The DSCP is that of a request, so that the mode is final.
    is_final: bool,
}

impl FlowMode {
    /// The mode by the DSCP of a packet that announces the flow.
    pub(crate) fn announced(config: &Config, key: &FlowKey, dscp: u8) -> Self {
        let mode = config.policy.mode_of(key, dscp);
        FlowMode { mode, duty: mode.duty(config.role), is_final: false }
    }

    /// The mode by the DSCP of the flow's first request.
    pub(crate) fn requested(config: &Config, key: &FlowKey, dscp: u8) -> Self {
        FlowMode { is_final: true, ..FlowMode::announced(config, key, dscp) }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    #[inline]
    pub(crate) fn duty(&self) -> Duty {
        self.duty
    }

    #[inline]
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }
}

//! The daemon around an engine: interception, WAN links, disk, configuration, administration, metrics.

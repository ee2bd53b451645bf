"""The pre-launch capacity report: one page for who decides, fifteen sections for who builds."""

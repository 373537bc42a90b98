"""What runs inside the process of a measured job."""
